"""Whether a plan agrees with itself: verdict with reasons and memory, placement and inputs with the orders.

A plan's id can be made anew by anybody, so it proves nothing about the content. A prediction that is merely false is
not refused here: the orders are carried out, and the comparison says `different`.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from scenarios.shapes import Sink, join

Document = dict[str, Any]
_WORDS = (
    "prompt_tokens", "passes", "positions", "batch", "attention", "kv_extent", "kv_dtype", "weights_dtype",
    "prefill_chunk", "layout",
)  # fmt: skip


def check_plan(plan: Document, path: str, sink: Sink) -> None:
    """Add every disagreement to the sink. The plan's shape, and its orders, must have been checked before."""
    _check_verdict(plan, path, sink)
    _check_inputs(plan, path, sink)
    names = Counter(entry["device"] for entry in plan.get("memory") or ())
    for device, count in names.items():
        if count > 1:
            sink.add(join(path, "memory"), f"{count} entries for {device}; wanted one")
    if plan.get("orders") is not None and plan.get("not_run"):
        sink.add(join(path, "orders"), "there are orders, but not_run says that nothing runs them; admit again")
    if plan["verdict"] == "admitted" and plan.get("orders") is None:
        for index, entry in enumerate(plan.get("memory") or []):
            _check_room(entry, entry.get("topology_id") is not None, join(path, f"memory[{index}]"), sink)
    elif plan["verdict"] == "admitted":
        _check_memory(plan, path, sink)
        _check_orders_beside(plan, path, sink)
    elif plan.get("orders") is not None:
        sink.add(join(path, "orders"), f"there are orders, but the plan is {plan['verdict']}; only an admitted one has")


def _check_verdict(plan: Document, path: str, sink: Sink) -> None:
    """error refuses, unknown leaves unverified, warning changes nothing."""
    severities = {reason.get("severity", "error") for reason in plan["reasons"]}
    wanted = "refused" if "error" in severities else "unverified" if "unknown" in severities else "admitted"
    if plan["verdict"] != wanted:
        sink.add(join(path, "verdict"), f"{plan['verdict']}, but by its reasons the plan is {wanted}; admit again")


def _check_inputs(plan: Document, path: str, sink: Sink) -> None:
    inputs = plan["inputs"]
    placed = {phase: inputs["placement"][phase] for phase in ("prefill", "decode")}
    if plan["placement"] | placed != plan["placement"]:
        sink.add(join(path, "inputs.placement"), "is not the plan's placement; admit again")
    degrees = {name: inputs["placement"][name] for name in ("tp", "pp") if name in inputs["placement"]}
    if inputs["placement"]["digest"] != _digest(placed | degrees):
        sink.add(join(path, "inputs.placement.digest"), "does not fit the placement; admit again")
    if (inputs["tokenizer"]["path"] is None) != (inputs["tokenizer"]["digest"] is None):
        sink.add(join(path, "inputs.tokenizer"), "path and digest are known together or not at all; admit again")


def _digest(document: Document) -> str:
    from scenarios.documents import digest_of

    return digest_of(document)


def _check_memory(plan: Document, path: str, sink: Sink) -> None:
    """Each arena that the orders list has its entry, and each device holds what its budget allows."""
    arenas = {arena["arena"]: arena["device"] for arena in plan["orders"]["arenas"]}
    topology = {device["id"]: device["topology_id"] for device in plan["orders"]["devices"]}
    memory = plan.get("memory") or []
    missing = [name for name in arenas if name not in {entry["device"] for entry in memory}]
    for name in missing:
        sink.add(join(path, "memory"), f"no entry for {name}, in which the orders lay buffers; admit again")
    for index, entry in enumerate(memory):
        at, name = join(path, f"memory[{index}]"), entry["device"]
        if name not in arenas:
            sink.add(f"{at}.device", f"{name} is no arena of the orders; admit again")
            continue
        device = arenas[name]
        known = None if device is None else topology[device]
        if entry.get("topology_id") != known:
            sink.add(f"{at}.topology_id", f"{entry.get('topology_id')}, but the orders say {known}; admit again")
        _check_room(entry, device is not None, at, sink)
    _check_shared(memory, path, sink)


def _check_shared(memory: list[Document], path: str, sink: Sink) -> None:
    """A memory that several devices lie in is told alike by each, and is not filled beyond its budget by them all."""
    totals = {entry["device"]: entry["total_bytes"] for entry in memory}
    for index, entry in enumerate(memory):
        shared = entry.get("shared")
        if shared is None:
            continue
        figures = [totals.get(name) for name in shared["devices"]]
        whole = None if None in figures else sum(figure for figure in figures if figure is not None)
        budget = shared.get("budget_bytes", entry["budget_bytes"])
        at = join(path, f"memory[{index}].shared")
        if entry["device"] not in shared["devices"] or whole != shared["total_bytes"]:
            sink.add(at, "is not the sum over the devices that it names; admit again")
        elif whole is None or budget is None or budget - whole != shared["slack_bytes"] or whole > budget:
            sink.add(at, "leaves no slack as stated: an admitted plan fits the shared memory; admit again")


def _check_room(entry: Document, is_device: bool, path: str, sink: Sink) -> None:
    """total <= budget <= capacity, none of them unknown; a host array has no bound."""
    total, budget, capacity = (entry[f"{name}_bytes"] for name in ("total", "budget", "capacity"))
    unknown = [name for name in ("total", "rounding") if entry[f"{name}_bytes"] is None]
    unknown += [f"resident {line}" for line, figure in entry["resident"].items() if figure is None]
    if is_device:
        unknown += [name for name, figure in (("budget", budget), ("capacity", capacity)) if figure is None]
    if unknown:
        sink.add(path, f"{', '.join(unknown)} unknown; nothing is admitted on an unknown; admit again")
    elif is_device and not total <= budget <= capacity:
        figures = f"total {total:,} B, budget {budget:,} B, capacity {capacity:,} B"
        sink.add(path, f"{figures}: an admitted plan has total <= budget <= capacity; admit again")


def _check_orders_beside(plan: Document, path: str, sink: Sink) -> None:
    orders, inputs = plan["orders"], plan["inputs"]
    for phase in ("prefill", "decode"):
        if plan["placement"][phase] != orders[phase]:
            placed = f"{plan['placement'][phase]}, but the orders run it on {orders[phase]}"
            sink.add(join(path, f"placement.{phase}"), f"{placed}; admit again")
    asked, work = inputs.get("workload"), orders["workload"]
    if asked is None:
        sink.add(join(path, "inputs.workload"), "missing; an admitted plan says what was asked")
        return
    for word in _WORDS:
        if asked[word] != work[word]:
            sink.add(
                join(path, f"inputs.workload.{word}"), f"{asked[word]}, but the orders say {work[word]}; admit again"
            )
    if asked.get("sampling") != work.get("sampling"):
        sink.add(join(path, "inputs.workload.sampling"), "is not that of the orders; admit again")
    words = {word: work[word] for word in (*_WORDS, "sampling") if word in work}
    if asked["digest"] != _digest(words | {"prompt_ids": work["prompt_ids"]}):
        sink.add(join(path, "inputs.workload.digest"), "does not fit the ordered workload; admit again")
