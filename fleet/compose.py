"""What a fleet file leaves to others, written out: shipped fleets and SKUs by name, and rows with a count.

Works on the plain data before its shape is checked, tolerant of what is misshapen. Every row that was moved or came
from a shipped file keeps its place, so that a fault is told where its words stand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from fleet.catalog import catalog_names, catalog_text
from fleet.catalog.skus import sku_names, sku_text
from fleet.yaml_source import Document, Path, nearest, parse_text, printable

ROWS = ("hosts", "devices", "switches", "nics", "nodes", "links")
COUNTED = ("devices", "switches", "nics")
MAX_COUNTED = 4096
"""More rows of one part are written as nodes, which are stamped and not written out."""
MAX_DEPTH = 8

Place = tuple[Document, Path]
Told = tuple[Path, str, bool]


@dataclass(slots=True)
class Composed:
    """The data with nothing left to others, and where each moved row of it stands."""

    document: Document
    data: dict[str, Any]
    origins: dict[Path, Place] = field(default_factory=dict)
    told: list[Told] = field(default_factory=list)

    def place(self, path: Path) -> Place:
        """The document and the path in it of a path of `data`."""
        for length in (4, 2):
            if path[:length] in self.origins and len(path) >= length:
                document, start = self.origins[path[:length]]
                return document, (*start, *path[length:])
        return self.document, path


def compose(document: Document, data: dict[str, Any], depth: int = 0) -> Composed:
    """`data` of `document` with what it extends, includes, names and counts written out."""
    composed = Composed(document, dict(data))
    for section in ("skus", "templates"):
        if isinstance(composed.data.get(section), dict):
            composed.data[section] = dict(composed.data[section])
    _bases(composed, depth)
    for path, part in list(_parts(composed.data)):
        _counts(composed, path, part)
    _templates(composed, depth)
    _skus(composed)
    return composed


def _parts(data: dict[str, Any]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The file itself and its templates, as (path, rows); templates are copied so that they may be changed."""
    yield (), data
    templates = data.get("templates")
    if isinstance(templates, dict):
        for name, part in templates.items():
            if isinstance(part, dict):
                copy = templates[name] = dict(part)
                yield ("templates", name), copy


def _bases(composed: Composed, depth: int) -> None:
    """`extends` and `include`: the rows of shipped fleets before those of the file."""
    data = composed.data
    include = data.get("include")
    named: list[tuple[Path, Any]] = [(("extends",), data.get("extends"))] if data.get("extends") is not None else []
    named += [(("include", i), name) for i, name in enumerate(include if isinstance(include, list) else ())]
    for path, name in named:
        base = _shipped(composed, path, name, depth)
        if base is None:
            continue
        for section in ROWS:
            _join(composed, base, section, override=path == ("extends",))
        _adopt(composed, base)
        for one in ("fabric", "budget", "label") if path == ("extends",) else ():
            if data.get(one) is None and base.data.get(one) is not None:
                data[one] = base.data[one]
                composed.origins[(one,)] = base.place((one,))


def _shipped(composed: Composed, path: Path, name: Any, depth: int) -> Composed | None:
    """A shipped fleet, itself written out."""
    if not isinstance(name, str):
        return None  # the shape tells
    names = catalog_names()
    if name not in names:
        message = f"{printable(name)} is no shipped fleet{nearest(name, names)} (shipped: {', '.join(names)})"
        composed.told.append((path, message, False))
        return None
    if depth >= MAX_DEPTH:
        composed.told.append((path, f"{printable(name)}: shipped fleets rest on each other too deeply", False))
        return None
    document = parse_text(catalog_text(name), f"{name}.yaml")
    return compose(document, document.data, depth + 1) if isinstance(document.data, dict) else None


def _join(composed: Composed, base: Composed, section: str, *, override: bool) -> None:
    """The rows of the base before the file's own. With `override` a row of the same key changes the base's row."""
    own, more = composed.data.get(section), base.data.get(section)
    if not isinstance(more, list) or not isinstance(own, list | None):
        return
    ways = _one_way if override and section == "links" else list
    rows: list[tuple[Any, Place]] = [
        (way, base.place((section, i))) for i, row in enumerate(more) for way in ways([row])
    ]
    at = {_key(section, row): i for i, (row, _) in enumerate(rows)} if override else {}
    written = [(way, composed.place((section, i))) for i, row in enumerate(own or ()) for way in ways([row])]
    for row, place in written:
        first = at.get(_key(section, row))
        if first is not None and isinstance(row, dict):
            rows[first] = (_over(rows[first][0], row), place)
        else:
            rows.append((row, place))
    composed.data[section] = [row for row, _ in rows]
    for position, (_, place) in enumerate(rows):
        composed.origins[section, position] = place


def _over(base: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    """The base with what the row states; a field with nothing behind it states nothing."""
    return {**base, **{name: value for name, value in row.items() if value is not None}}


def _one_way(rows: list[Any]) -> list[Any]:
    """A row for both directions as two, so that each of them can be changed by itself."""
    made = []
    for row in rows:
        if not isinstance(row, dict) or row.get("bidirectional") != "true":
            made.append(row)
            continue
        there = {name: value for name, value in row.items() if name != "bidirectional"}
        made += [there, {**there, "from": row.get("to"), "to": row.get("from")}]
    return made


def _key(section: str, row: Any) -> Any:
    """What makes two rows of a section the same; None for a row that has no key."""
    names = ("from", "to", "kind") if section == "links" else ("id",)
    key = tuple(row.get(name) for name in names) if isinstance(row, dict) else (None,)
    return key if all(isinstance(word, str) for word in key) else object()


def _adopt(composed: Composed, base: Composed) -> None:
    """SKUs and templates of a base, unless the file has its own of that name."""
    for section in ("skus", "templates"):
        held = base.data.get(section)
        for name, row in held.items() if isinstance(held, dict) else ():
            _add(composed, section, name, row, base.place((section, name)))
            for inner in ROWS if section == "templates" and isinstance(row, dict) else ():
                for i in range(len(row.get(inner) or ())):
                    composed.origins.setdefault((section, name, inner, i), base.place((section, name, inner, i)))


def _add(composed: Composed, section: str, name: str, row: Any, place: Place) -> bool:
    """Whether the name was free (or its section misshapen)."""
    known = composed.data.get(section)
    if known is None:
        known = composed.data[section] = {}
    if not isinstance(known, dict) or name in known:
        return False
    known[name] = row
    composed.origins[section, name] = place
    return True


def _counts(composed: Composed, path: Path, part: dict[str, Any]) -> None:
    """A row with a count becomes that many rows, `id:0`, `id:1` and so on."""
    for section in COUNTED:
        rows = part.get(section)
        if not isinstance(rows, list) or not any(isinstance(row, dict) and "count" in row for row in rows):
            continue
        made: list[tuple[Any, Place]] = []
        for position, row in enumerate(rows):
            place = composed.place((*path, section, position))
            many = _count(row)
            if many is None:
                made.append((row, place))
            elif len(made) + many > MAX_COUNTED:
                message = f"makes more than {MAX_COUNTED:,} rows; write a template, and nodes with a count"
                composed.told.append(((*path, section, position, "count"), message, False))
                return
            else:
                plain = {key: value for key, value in row.items() if key != "count"}
                made += [({**plain, "id": f"{row['id']}:{number}"}, place) for number in range(many)]
        part[section] = [row for row, _ in made]
        for position, (_, place) in enumerate(made):
            composed.origins[*path, section, position] = place


def _count(row: Any) -> int | None:
    if not isinstance(row, dict) or not isinstance(row.get("id"), str):
        return None
    text = row.get("count")
    return int(text) if isinstance(text, str) and re.fullmatch(r"[1-9][0-9]{0,6}", text, re.ASCII) else None


def _templates(composed: Composed, depth: int) -> None:
    """Templates that only the catalog has: a shipped fleet is a template too."""
    for path, part in list(_parts(composed.data)):
        for position, row in enumerate(part["nodes"] if isinstance(part.get("nodes"), list) else ()):
            name = row.get("template") if isinstance(row, dict) else None
            known = composed.data.get("templates") or {}
            if not isinstance(name, str) or not isinstance(known, dict) or name in known or name not in catalog_names():
                continue
            base = _shipped(composed, (*path, "nodes", position, "template"), name, depth)
            if base is None:
                continue
            rows = {section: base.data[section] for section in ROWS if base.data.get(section) is not None}
            _add(composed, "templates", name, rows, base.place(()))
            for section, held in rows.items():
                for i in range(len(held)):
                    composed.origins["templates", name, section, i] = base.place((section, i))
            _adopt(composed, base)


def _skus(composed: Composed) -> None:
    """SKUs that only the catalog has, and SKUs that begin with one of the catalog."""
    skus = composed.data.get("skus")
    for name, row in list(skus.items()) if isinstance(skus, dict) else ():
        if isinstance(row, dict) and isinstance(row.get("extends"), str):
            base = _catalog_sku(row["extends"])
            if base is None:
                known = sku_names()
                hint = f"{nearest(row['extends'], known)} (catalog: {', '.join(known)})"
                told = f"{printable(row['extends'])} is no SKU of the catalog{hint}"
                composed.told.append((("skus", name, "extends"), told, False))
            else:
                skus[name] = _over(base[0], row)  # type: ignore[index]  # a dict, seen above
    for _, part in _parts(composed.data):
        devices = part.get("devices")
        for row in devices if isinstance(devices, list) else ():
            name = row.get("sku") if isinstance(row, dict) else None
            known_skus = composed.data.get("skus") or {}
            if isinstance(name, str) and isinstance(known_skus, dict) and name not in known_skus:
                base = _catalog_sku(name)
                if base is not None:
                    _add(composed, "skus", name, *base)


def _catalog_sku(name: str) -> tuple[dict[str, Any], Place] | None:
    """The row of a SKU of the catalog and its place."""
    if name not in sku_names():
        return None
    document = parse_text(sku_text(name), f"skus/{name}.yaml")
    return (document.data, (document, ())) if isinstance(document.data, dict) else None
