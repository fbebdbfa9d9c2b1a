"""The base with some fields set anew, and faults of such a case told where its words stand."""

from __future__ import annotations

import copy
import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from fleet.errors import DescriptionError, Fault
from fleet.yaml_source import Data, Document, Path, field_name
from scenarios.sweeping.read_sweep import node_of
from scenarios.sweeping.spec import Base, Choice, Place, Sweep

CASE = "<case>"
"""What the text of a case is called until its faults are told in the sweep file or the base."""
FILES = ("fleet", "model", "trace", "tokenizer")
"""Fields that name files; left out of a case's key, where the content's digest stands for them."""


def merged(sweep: Sweep, choice: Choice) -> dict[str, Any]:
    """The base's content with the fields of `choice`. Raises DescriptionError where one lies within no mapping."""
    base = sweep.base.document.data
    data: dict[str, Any] = copy.deepcopy(base) if isinstance(base, dict) else {}
    for name in FILES:
        if isinstance(data.get(name), str):
            data[name] = _found(data[name], sweep.base.folder)
    faults = []
    for name, setting in choice.items():
        *above, last = name.split(".")
        here: Any = data
        for step in above:
            here = here.setdefault(step, {}) if isinstance(here, dict) else None
        if not isinstance(here, dict):
            faults.append(_fault(sweep, name, f"{'.'.join(above)} is no mapping in the base", setting.key_place))
        elif setting.value is None:
            here.pop(last, None)
        else:
            here[last] = copy.deepcopy(setting.value)
            if name in FILES and isinstance(setting.value, str):
                here[last] = _found(setting.value, sweep.folder, sweep.base.folder)
    for name in FILES:
        if isinstance(data.get(name), str) and (words := _no_file(data[name])) is not None:
            faults.append(Fault(source=CASE, field=name, message=words))
    if faults:
        raise DescriptionError(faults)
    return data


def _found(name: str, *folders: str) -> str:
    """The file of that name in the first folder that has it; else the name itself (a shipped fleet, a cached model)."""
    paths = (os.path.join(folder, name) for folder in folders if name)
    return next((path for path in paths if "\0" not in path and os.path.lexists(path)), name)


def _no_file(path: str) -> str | None:
    """What is wrong with a file that must not be opened: a pipe blocks, a device never ends, stdin is read once."""
    if path == "-":
        return "- is stdin; name a file"
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return None  # its reader words it, or takes it for a name
    return None if stat.S_ISREG(mode) or stat.S_ISDIR(mode) else "is a device or a pipe, not a file"


def case_document(sweep: Sweep, data: Data) -> Document:
    """The case as a parsed text without places. What is wrong with the base's own text stays wrong."""
    base = sweep.base.document
    if base.faults:
        raise DescriptionError(base.faults)
    return Document(source=CASE, text="", root=node_of(data) if isinstance(base.data, dict) else base.root)


def told(sweep: Sweep, choice: Choice, faults: tuple[Fault, ...]) -> list[Fault]:
    """Faults of a case at the field of the sweep that caused them, else at the base's; those of other files as is."""
    return [_told(sweep, choice, fault) if fault.source == CASE else fault for fault in faults]


def _told(sweep: Sweep, choice: Choice, fault: Fault) -> Fault:
    name = _setting_of(choice, fault.field)
    if name is not None:
        setting = choice[name]
        unknown = fault.message.startswith("no such field") or "stands beside" in fault.message
        line, column = setting.key_place if unknown else setting.place
        return replace(fault, source=sweep.source, line=line, column=column)
    line, column = _place_in(sweep.base, fault.field)
    return replace(fault, source=sweep.base.document.source, line=line, column=column)


def _setting_of(choice: Choice, name: str) -> str | None:
    """The field of the choice that a fault's field is, lies in or holds; a fault may name it without its section."""
    inside = [known for known in choice if name == known or name.startswith((f"{known}.", f"{known}["))]
    below = [known for known in choice if name and known.startswith(f"{name}.")]
    bare = [known for known in choice if name and known.rpartition(".")[2] == name]
    return next(iter([*sorted(inside, key=len, reverse=True), *below, *bare]), None)


def _place_in(base: Base, name: str) -> Place:
    """Where a field, or the nearest one above it, stands in the base."""
    best: tuple[int, Path] = (0, ())
    for path in _paths(base.document.data, ()):
        known = field_name(path)
        fits = name == known or name.startswith((f"{known}.", f"{known}[")) or known.endswith(f".{name}")
        if fits and name and len(known) > best[0]:
            best = (len(known), path)
    return base.document.at(best[1])


def _paths(data: Data, above: Path) -> Iterator[Path]:
    pairs: list[tuple[str | int, Data]] = []
    if isinstance(data, dict):
        pairs = list(data.items())
    elif isinstance(data, list):
        pairs = list(enumerate(data))
    for step, value in pairs:
        yield (*above, step)
        yield from _paths(value, (*above, step))


def _fault(sweep: Sweep, name: str, message: str, place: Place) -> Fault:
    return Fault(source=sweep.source, field=name, message=message, line=place[0], column=place[1])
