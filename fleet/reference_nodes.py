"""What nodes of a fleet file stamp: which ids a template makes, and whether the templates can be stamped at all."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from fleet.catalog import catalog_names
from fleet.yaml_source import Path, printable

if TYPE_CHECKING:
    from fleet.references import Part

MAX_STAMPED = 300_000
"""Hosts, devices, switches, NICs and written link rows that nodes may stamp in one fleet."""
MAX_NESTED = 8
_KEPT = ("hosts", "devices", "switches", "nics")
_COUNT = re.compile(r"[1-9][0-9]{0,6}", re.ASCII)


class Stamps:
    """The templates of a file, and what stamping them makes."""

    def __init__(self, templates: dict[str, Any]) -> None:
        self.templates = {name: part for name, part in templates.items() if isinstance(part, dict)}
        self.told_cycles: set[str] = set()
        self.too_many = False
        self.total = 0
        self.depths: dict[str, int] = {}
        self.sizes: dict[str, int] = {}

    def check_nodes(self, state: Part) -> None:
        """Templates exist, do not contain themselves, and make no more than MAX_STAMPED rows."""
        prefixes: dict[Any, Path] = {}
        for path, row in state.rows("nodes"):
            name, node = row.get("template"), row.get("id")
            if not isinstance(name, str):
                continue
            if name not in self.templates:
                names = [*self.templates, *catalog_names()]
                told = f"{printable(name)} is no template of this file, nor a shipped fleet{state.hint(name, names)}"
                state.tell((*path, "template"), told)
                continue
            broken = self._broken(name)
            if broken:
                if not self.told_cycles & set(broken):
                    chain = " -> ".join(map(printable, broken))
                    how = "goes round" if broken[0] == broken[-1] else f"is nested deeper than {MAX_NESTED} templates"
                    state.tell((*path, "template"), f"{how}: {chain}; break it")
                self.told_cycles |= set(broken)
                continue
            self.total += self.size(name) * _times(row)
            if self.total > MAX_STAMPED:
                self.too_many = True
                told = f"makes {self.total:,} hosts, devices, switches, NICs and links so far; at most {MAX_STAMPED:,}"
                state.tell((*path, "count") if row.get("count") is not None else path, told)
                return
            for prefix in node_names(node, row) if isinstance(node, str) else ():
                if not state.claim(prefixes, prefix, (*path, "id"), f"{printable(prefix)} is the node"):
                    break

    def _broken(self, name: str, above: tuple[str, ...] = ()) -> tuple[str, ...]:
        """The names of a cycle that `name` leads into, or of a chain that is too deep; nothing where all is well."""
        if name in above:
            return (*above[above.index(name) :], name)
        if len(above) + self.depths.get(name, 1) > MAX_NESTED:
            return (*above, name)
        if name in self.depths:
            return ()
        deepest = 0
        for row in _nodes(self.templates.get(name, {})):
            inner = row.get("template")
            if isinstance(inner, str) and inner in self.templates:
                found = self._broken(inner, (*above, name))
                if found:
                    return found
                deepest = max(deepest, self.depths[inner])
        self.depths[name] = deepest + 1
        return ()

    def size(self, name: str) -> int:
        """The rows that one stamp of a template makes. Only for templates that `_broken` found well."""
        if name not in self.sizes:
            part = self.templates.get(name, {})
            own = sum(len(part[section]) for section in (*_KEPT, "links") if isinstance(part.get(section), list))
            inner = [(row.get("template"), _times(row)) for row in _nodes(part)]
            deeper = [(n, times) for n, times in inner if isinstance(n, str) and n in self.templates]
            self.sizes[name] = own + sum(self.size(inner_name) * times for inner_name, times in deeper)
        return self.sizes[name]

    def ends(self, state: Part) -> dict[str, bool]:
        """The ids at which links of a part may end; True for those of hosts and NICs."""
        nodes = {row["id"] for _, row in state.rows("nodes") if isinstance(row.get("id"), str)}
        own = {name: name in state.through for name in (*state.owners, *state.hosts) if name not in nodes}
        if not self.too_many and not self.told_cycles:
            own.update(self._stamped(state.data))
        return own

    def _stamped(self, part: dict[str, Any]) -> Iterator[tuple[str, bool]]:
        for row in _nodes(part):
            template, node = row.get("template"), row.get("id")
            if isinstance(template, str) and template in self.templates and isinstance(node, str):
                inside = self._inside(template)
                for prefix in node_names(node, row):
                    yield from ((f"{prefix}/{name}", through) for name, through in inside)

    def _inside(self, template: str) -> tuple[tuple[str, bool], ...]:
        part = self.templates[template]
        found: dict[str, bool] = {}
        for section in _KEPT:
            rows = part.get(section)
            for row in rows if isinstance(rows, list) else ():
                if isinstance(row, dict) and isinstance(row.get("id"), str):
                    found[row["id"]] = section in ("hosts", "nics")
        if not part.get("hosts") and (part.get("devices") or not part.get("nodes")):
            found["host"] = True
        found.update(self._stamped(part))
        return tuple(found.items())


def _nodes(part: dict[str, Any]) -> list[dict[str, Any]]:
    rows = part.get("nodes")
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _times(row: dict[str, Any]) -> int:
    count = row.get("count")
    return int(count) if isinstance(count, str) and _COUNT.fullmatch(count) else 1


def node_names(node: str, row: dict[str, Any]) -> list[str]:
    """`node0`, `node1` ... of a row with a count; its id otherwise."""
    return [node] if row.get("count") is None else [f"{node}{number}" for number in range(_times(row))]


@lru_cache(maxsize=1024)
def pattern(end: str) -> re.Pattern[str]:
    """What the end of a link with `*` matches: any run of characters but `/`."""
    return re.compile("[^/]*".join(re.escape(piece) for piece in end.split("*")), re.ASCII)
