"""A fleet file with new observations in it and everything else, comments too, as it was written."""

from __future__ import annotations

import io
import re
from typing import Any

from fleet.dump import observed_row
from fleet.errors import DescriptionError
from fleet.load import load_fleet
from fleet.machine import Fleet, Link, Quantity

_INDENTED = re.compile(r"^[a-z]+:[^\S\n]*(?:#.*)?\n(?:[^\S\n]*(?:#.*)?\n)*[^\S\n]+- ", re.M)
FIGURES = ("bandwidth", "latency")


def rewritten(text: str, source: str, fleet: Fleet) -> str | None:
    """`text`, a fleet file, with the observations of `fleet`; None where that takes more than an edit of link rows.

    The result has been read back: it gives exactly `fleet`.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    yaml = YAML(typ="rt")
    yaml.preserve_quotes = True
    yaml.width = 10**6
    if _INDENTED.search(text):
        yaml.indent(mapping=2, sequence=4, offset=2)
    try:
        data = yaml.load(text)
    except (YAMLError, ValueError, TypeError, AttributeError):
        return None  # ruamel resolves numbers that a fleet file keeps as text
    rows = data.get("links") if isinstance(data, dict) else None
    if not isinstance(rows, list):
        return None
    old = {(link.src, link.dst, link.kind): link for link in load_fleet(source, text=text).links}
    for link in fleet.links:
        before = old.get((link.src, link.dst, link.kind))
        if before is not None and before != link and not _edit(rows, link):
            return None
    out = io.StringIO()
    yaml.dump(data, out)
    return out.getvalue() if _gives(out.getvalue(), source, fleet) else None


def _gives(text: str, source: str, fleet: Fleet) -> bool:
    try:
        return load_fleet(source, text=text).digest == fleet.digest
    except DescriptionError:
        return False


def _edit(rows: Any, link: Link) -> bool:
    """Whether a row was found that stands for the link, and changed."""
    for place, row in enumerate(rows):
        if not isinstance(row, dict) or row.get("kind") != link.kind:
            continue
        ends = (row.get("from"), row.get("to"))
        if ends == (link.src, link.dst):
            if row.get("bidirectional") is True:
                _split(rows, place)
            _fill(rows[place], link)
            return True
        if ends == (link.dst, link.src) and row.get("bidirectional") is True:
            _split(rows, place)
            _fill(rows[place + 1], link)
            return True
    return False


def _split(rows: Any, place: int) -> None:
    """A row for both directions becomes two, since each direction is measured by itself."""
    from copy import deepcopy

    there = rows[place]
    del there["bidirectional"]
    back = deepcopy(there)
    back["from"], back["to"] = there["to"], there["from"]
    rows.insert(place + 1, back)


def _fill(row: Any, link: Link) -> None:
    for name in FIGURES:
        quantity: Quantity = getattr(link, name)
        if quantity.observed is None:
            continue
        observed = _flow(observed_row(name, quantity.observed))
        held = row.get(name)
        if isinstance(held, dict) and ("declared" in held or "observed" in held):
            held["observed"] = observed
        elif held is None or held == "unknown":
            row[name] = _flow({"observed": observed})
        else:
            row[name] = _flow({"declared": held, "observed": observed})


def _flow(row: dict[str, Any]) -> Any:
    from ruamel.yaml.comments import CommentedMap

    made = CommentedMap({name: value == "true" if name == "verified" else value for name, value in row.items()})
    made.fa.set_flow_style()
    return made
