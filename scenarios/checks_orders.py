"""Whether two plans order the same: what is done may change without a byte of the prediction changing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from planner.orders import OrderedWorkload
from scenarios.case import Case, Document
from scenarios.finding import Finding, failed, passed, waived

_MOST_TOLD = 6
_WORDS = tuple(sorted({field.name for field in fields(OrderedWorkload)} - {"prompt_ids"}))
"""What orders say of the request; keys that nobody here knows are ignored, as everywhere in a document."""


def orders_unchanged(case: Case) -> Finding:
    """Fails when two plans differ in devices, arenas, fences, steps or workload.

    Other prompt ids of the same number move the same bytes; they are told and do not fail, as is another reference. So
    is not which physical device an id means: a plan is for any that fits.
    """
    first, second = case.a.get("orders"), case.b.get("orders")
    if first is None and second is None:
        return waived("neither document holds orders")
    if first is None or second is None:
        return failed(f"orders: {'absent' if first is None else 'there'} -> {'absent' if second is None else 'there'}")
    changes = list(_changes(first, second))
    if changes:
        more = f"; and {len(changes) - _MOST_TOLD} more" if len(changes) > _MOST_TOLD else ""
        return failed("; ".join(changes[:_MOST_TOLD]) + more)
    ids = [orders["workload"].get("prompt_ids") for orders in (first, second)]
    other = "" if ids[0] == ids[1] else "; other prompt ids, of the same number"
    other += "" if first.get("expect") == second.get("expect") else "; another reference to expect"
    return passed(f"{len(first['steps'])} steps, arenas and fences are the same{other}")


def _changes(first: Document, second: Document) -> Iterator[str]:
    for phase in ("prefill", "decode"):
        yield from _changed(phase, first[phase], second[phase])
    for what, key in (("devices", "id"), ("fences", "arena"), ("arenas", "arena")):
        yield from _changed_by_name(what, key, first[what], second[what])
    yield from _changed_steps(first["steps"], second["steps"])
    for word in _WORDS:
        yield from _changed(f"workload {word}", first["workload"].get(word), second["workload"].get(word))


def _changed(what: str, old: Any, new: Any) -> Iterator[str]:
    if old != new:
        yield f"{what}: {_told(old)} -> {_told(new)}"


def _told(value: Any) -> str:
    return f"{value:,}" if type(value) is int else "absent" if value is None else str(value)


def _changed_by_name(what: str, key: str, first: list[Document], second: list[Document]) -> Iterator[str]:
    old, new = ({row[key]: row for row in rows} for rows in (first, second))
    for name in dict.fromkeys((*old, *new)):
        one, other = old.get(name), new.get(name)
        if one is None or other is None:
            yield f"{what} {name}: {'absent' if one is None else 'there'} -> {'absent' if other is None else 'there'}"
        elif what == "arenas":
            yield from _changed(f"arena {name} device", one["device"], other["device"])
            yield from _changed_buffers(name, one["buffers"], other["buffers"])
        else:
            for field in sorted({*one, *other} - {"uuid", "pci"}):
                yield from _changed(f"{what} {name} {field}", one.get(field), other.get(field))
    if old.keys() == new.keys() and list(old) != list(new):
        yield f"{what} in another order"


def _changed_buffers(arena: str, first: list[Document], second: list[Document]) -> Iterator[str]:
    old, new = ({buffer["name"]: buffer for buffer in buffers} for buffers in (first, second))
    for name in dict.fromkeys((*old, *new)):
        words = [
            None if found is None else f"{found['dtype']} {found['shape']} {found['layout']}"
            for found in (old.get(name), new.get(name))
        ]
        yield from _changed(f"arena {arena} {name}", *words)
    if old.keys() == new.keys() and list(old) != list(new):
        yield f"arena {arena} lists its buffers in another order"


def _changed_steps(first: list[Document], second: list[Document]) -> Iterator[str]:
    if len(first) != len(second):
        yield f"{len(first)} steps -> {len(second)}"
    for index, (old, new) in enumerate(zip(first, second, strict=False)):
        fields = [field for field in dict.fromkeys((*old, *new)) if old.get(field) != new.get(field)]
        for field in fields:
            yield from _changed(f"steps[{index}] ({old['op']}) {field}", old.get(field), new.get(field))
