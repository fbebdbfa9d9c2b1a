"""What else nvidia-smi, or a report of a serving engine, says of the cards in the text that holds a matrix.

`nvidia-smi -L` gives names and uuids, its table names and PCI addresses, an environment report (`GPU 0,1: NVIDIA A10`)
names alone. Names contradict a `--sku` that means another card; nothing here gives a memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from fleet.identity import uuid_key
from fleet.readers.building import Faults, lines_of

_LISTED = re.compile(r"^\s*GPU ([0-9]{1,3}): (.{1,80}?) \(UUID: (GPU-[0-9A-Fa-f-]{1,40})\)\s*$", re.ASCII)
_MAKER = r"(?:NVIDIA|Tesla|GeForce|Quadro|TITAN)\b"
_REPORTED = re.compile(rf"^\s*GPU ([0-9]{{1,3}}(?:, ?[0-9]{{1,3}}){{0,99}}): ({_MAKER}[^:|(]{{1,80}})$", re.ASCII)
_TABLE = re.compile(
    rf"^\s*\|\s+([0-9]{{1,3}})\s+({_MAKER}[^|]{{0,80}}?)\s+(?:On|Off|N/A|Enabled|Disabled)\s+\|"
    r"\s+([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9])\s",
    re.ASCII,
)
_MAX_LINE = 400


@dataclass(frozen=True, kw_only=True, slots=True)
class Listed:
    """What one line says of one card; `cut` where the name ends in dots and so is the beginning of one."""

    number: int
    line: int
    name: str | None
    cut: bool = False
    uuid: str | None = None
    pci: str | None = None


def listed_cards(text: str, gpus: tuple[str, ...], faults: Faults) -> dict[str, Listed]:
    """What is said of each GPU of the matrix, by `GPU0`. Two names or uuids of one card are faults, both told.

    So are a uuid or PCI address of two cards, and cards of `nvidia-smi -L` that the matrix lacks.
    """
    found: dict[str, Listed] = {}
    beyond: list[Listed] = []
    for row in _rows(text):
        name = f"GPU{row.number}"
        if name not in gpus:
            beyond += [row] if row.uuid is not None else []
            continue
        held = found.get(name)
        if held is not None and (told := _clash(held, row)) is not None:
            faults.tell(row.line, name, f"{told}: give the text of one machine")
        found[name] = row if held is None else _joined(held, row)
    if beyond:
        names = ", ".join(dict.fromkeys(f"GPU{row.number}" for row in beyond[:4]))
        shown = ", ".join(gpus[:4]) + (f" and {len(gpus) - 4} more" if len(gpus) > 4 else "")
        told = f"nvidia-smi -L names {names}, the matrix {shown} alone: give both of one machine"
        faults.tell(beyond[0].line, "", told)
    _doubles(list(found.values()), faults)
    return found


def _rows(text: str) -> Iterator[Listed]:
    for line, row in enumerate(lines_of(text), start=1):
        if len(row) > _MAX_LINE or ("GPU " not in row and "|" not in row):
            continue
        listed, reported, table = _LISTED.match(row), _REPORTED.match(row), _TABLE.match(row)
        if listed is not None:
            yield Listed(number=int(listed[1]), line=line, name=listed[2], uuid=listed[3])
        elif table is not None:
            name, cut = _whole(table[2])
            domain, _, place = table[3].lower().partition(":")
            pci = f"{domain[-4:] if domain.startswith('0000') else domain:0>4}:{place}"
            yield Listed(number=int(table[1]), line=line, name=name, cut=cut, pci=pci)
        elif reported is not None:
            name, cut = _whole(reported[2].strip())
            for number in reported[1].split(","):
                yield Listed(number=int(number), line=line, name=name, cut=cut)


def _whole(name: str) -> tuple[str | None, bool]:
    """(what is sure of a name, whether its end is cut): `NVIDIA A100-SXM...` is surely `NVIDIA A100`."""
    if not name.endswith("..."):
        return name, False
    kept = re.sub(r"[\s-]*[^\s-]*$", "", name.removesuffix("..."))
    return (kept if re.search("[0-9]", kept) else None), True


def _clash(held: Listed, row: Listed) -> str | None:
    """How two lines contradict each other on one card; None where they may both hold."""
    one, other = held.name, row.name
    named = one is not None and other is not None and one != other
    if named and ((held.cut and str(other).startswith(str(one))) or (row.cut and str(one).startswith(str(other)))):
        named = False
    unlike = [
        ours is not None and theirs is not None and ours.casefold() != theirs.casefold()
        for ours, theirs in ((held.uuid, row.uuid), (held.pci, row.pci))
    ]
    if not named and not any(unlike):
        return None
    return f"is {_shown(held)} in line {held.line}, but {_shown(row)} in line {row.line}"


def _shown(row: Listed) -> str:
    return ", ".join(word for word in (row.name, row.uuid, row.pci) if word is not None)


def _joined(held: Listed, row: Listed) -> Listed:
    whole = row if held.name is None or (held.cut and row.name is not None) else held
    return Listed(
        number=held.number, line=held.line, name=whole.name, cut=whole.cut,
        uuid=held.uuid or row.uuid, pci=held.pci or row.pci,
    )  # fmt: skip


def _doubles(rows: list[Listed], faults: Faults) -> None:
    uuids = [uuid_key(row.uuid) for row in rows if row.uuid is not None]
    places = [row.pci for row in rows if row.pci is not None]
    for what, keys in (("uuid", uuids), ("PCI address", places)):
        if len(set(keys)) < len(keys):
            told = f"nvidia-smi gives one {what} to two cards: give the text as printed"
            faults.tell(min(row.line for row in rows), "", told)
