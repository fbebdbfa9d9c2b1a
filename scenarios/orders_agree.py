"""Whether orders agree with themselves: each step with the workload, the buffers and the placement that it serves.

The planner writes steps from the workload, so orders in which the two differ were written by another hand. They are
refused here, in the words of the file; what the executor cannot carry out is its own affair.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from fleet.identity import pci_key, uuid_key
from scenarios.shapes import Sink

BOS = 1
_RANK = {"stage": 0, "prefill": 1, "handoff": 2, "decode": 3}

Document = dict[str, Any]


def check_agreement(orders: Document, path: str, sink: Sink) -> None:
    """Add every disagreement to the sink. The orders' own fields must have been checked before."""
    _check_identities(orders["devices"], f"{path}.devices", sink)
    _check_request(orders, path, sink)
    _check_caches(orders, path, sink)
    _check_sequence(orders, f"{path}.steps", sink)
    _check_stages(orders, f"{path}.steps", sink)
    _check_hops(orders, f"{path}.steps", sink)


def _check_identities(devices: list[Document], path: str, sink: Sink) -> None:
    """No two devices are one: of one kind on one host with one index, or of one UUID or PCI address."""
    for what, fields in (("index", ("host", "kind", "index")), ("uuid", ("uuid",)), ("pci", ("host", "pci"))):
        seen: dict[tuple[str, ...], str] = {}
        for number, device in enumerate(devices):
            if device.get(what) is None:
                continue
            key = tuple(_identity(field, device[field]) for field in fields)
            other = seen.setdefault(key, device["id"])
            if other != device["id"]:
                sink.add(f"{path}[{number}].{what}", f"{device[what]} is that of {other} too")


def _identity(field: str, value: Any) -> str:
    """What is compared of a field: another spelling of a UUID or an address makes no second device."""
    text = str(value)
    return {"uuid": uuid_key, "pci": pci_key}.get(field, str.casefold)(text) or text


def _check_request(orders: Document, path: str, sink: Sink) -> None:
    work = orders["workload"]
    ids = work["prompt_ids"]
    llama2c = any(buffer["name"] == "weights/wq" for arena in orders["arenas"] for buffer in arena["buffers"])
    if ids and ids[0] != BOS and llama2c:
        sink.add(f"{path}.workload.prompt_ids[0]", f"{ids[0]} is not BOS ({BOS}), with which every prompt begins")
    if work["attention"] == "host" and work["prefill_chunk"] != 1:
        sink.add(f"{path}.workload.prefill_chunk", "attention on the host runs token by token; wanted 1")
    chunk = orders.get("prefill_chunk", work["prefill_chunk"])
    if chunk != work["prefill_chunk"]:
        sink.add(f"{path}.prefill_chunk", f"{chunk}, but the workload says {work['prefill_chunk']}")


def _block(extent: str) -> int | None:
    return int(extent.removeprefix("blocks:")) if extent.startswith("blocks:") else None


def cache_positions(work: Document) -> int:
    """Positions that a cache holds: rounded up to whole blocks under `blocks:N`."""
    block = _block(work["kv_extent"]) or 1
    return int(-(-work["positions"] // block) * block)


def _caches(orders: Document) -> list[tuple[str, Document]]:
    """(place, buffer) of every KV cache that the orders list."""
    return [
        (f"arenas[{a}].buffers[{b}].shape", buffer)
        for a, arena in enumerate(orders["arenas"])
        for b, buffer in enumerate(arena["buffers"])
        if buffer["name"].startswith("kv/")
    ]


def _has_other_caches(orders: Document) -> bool:
    return any(b["name"].startswith("cache/") for arena in orders["arenas"] for b in arena["buffers"])


def _check_caches(orders: Document, path: str, sink: Sink) -> None:
    """Every cache has the workload's positions and type; all have one shape."""
    work = orders["workload"]
    wanted, caches = cache_positions(work), _caches(orders)
    for at, buffer in caches:
        shape = buffer["shape"]
        if len(shape) < 3 or shape[-2] != wanted:
            sink.add(f"{path}.{at}", f"{shape} does not hold the {wanted} positions of the workload")
        elif shape != caches[0][1]["shape"]:
            sink.add(f"{path}.{at}", f"{shape} is not the shape of the other caches, {caches[0][1]['shape']}")
        if buffer["dtype"] != work["kv_dtype"]:
            sink.add(f"{path}.{at}", f"of {buffer['dtype']}, but the workload says kv_dtype {work['kv_dtype']}")


def _check_sequence(orders: Document, path: str, sink: Sink) -> None:
    """Stages, one prefill, and where N > P the handoff and one decode."""
    work, ops = orders["workload"], [step["op"] for step in orders["steps"]]
    counts = Counter(ops)
    decodes = work["passes"] > work["prompt_tokens"]
    if counts["prefill"] != 1 or counts["decode"] != decodes:
        sink.add(
            path,
            f"{counts['prefill']} prefill and {counts['decode']} decode steps; {work['passes']} passes over"
            f" {work['prompt_tokens']} prompt tokens take 1 and {int(decodes)}",
        )
    for index in range(1, len(ops)):
        if _RANK[ops[index]] < _RANK[ops[index - 1]]:
            sink.add(f"{path}[{index}].op", f"{ops[index]} stands behind {ops[index - 1]}")
            break


def _check_stages(orders: Document, path: str, sink: Sink) -> None:
    """Each weight that an arena lists is staged to it, once."""
    staged = Counter((step["dst"], step["tensor"]) for step in orders["steps"] if step["op"] == "stage")
    listed = {
        (arena["arena"], buffer["name"].removeprefix("weights/"))
        for arena in orders["arenas"]
        for buffer in arena["buffers"]
        if buffer["name"].startswith("weights/")
    }
    for arena, tensor in sorted(listed - staged.keys()):
        sink.add(path, f"{tensor} is never staged to {arena}, which lists it")
    for arena, tensor in sorted(staged.keys() - listed):
        sink.add(path, f"{tensor} is staged to {arena}, which lists no such weight")
    for (arena, tensor), count in sorted(staged.items()):
        if count > 1:
            sink.add(path, f"{tensor} is staged to {arena} {count} times")


def _check_hops(orders: Document, path: str, sink: Sink) -> None:
    """The handoff steps are those that placement, attention and extent make: k and v over each hop, whole."""
    steps = [(index, step) for index, step in enumerate(orders["steps"]) if step["op"] == "handoff"]
    # Caches that are no k and v are priced and run by nobody: their handoff is not ordered.
    ordered = orders["workload"]["passes"] > orders["workload"]["prompt_tokens"] and not _has_other_caches(orders)
    hops = _hops(orders) if ordered else []
    wanted = [(*hop, tensor) for hop in hops for tensor in ("k", "v")]
    if len(steps) != len(wanted):
        sink.add(path, f"{len(steps)} handoff steps; this placement and workload take {len(wanted)}")
        return
    moved = _moved(orders)
    modes = {step["mode"] for _, step in steps if step["mode"] in ("direct", "staged", "local")}
    if len(modes) > 1:
        sink.add(path, f"K and V go across in several modes: {', '.join(sorted(modes))}")
    for (index, step), (src, dst, mode, tensor) in zip(steps, wanted, strict=True):
        expected = moved | {"src": src, "dst": dst, "tensor": tensor}
        for field, value in expected.items():
            if step.get(field) != value:
                sink.add(f"{path}[{index}].{field}", f"{_told(step.get(field))}; this workload takes {_told(value)}")
        if step["mode"] not in mode:
            sink.add(f"{path}[{index}].mode", f"{step['mode']}; from {src} to {dst} it is {' or '.join(mode)}")
        if (step["mode"] == "staged") != ("chunk" in step):
            sink.add(f"{path}[{index}].chunk", "a staged copy has one, and no other")


def _told(value: Any) -> str:
    return "nothing" if value is None else str(value)


def _hops(orders: Document) -> list[tuple[str, str, tuple[str, ...]]]:
    """(src, dst, modes that it may have) of each hop of the handoff, in order."""
    prefill, decode = orders["prefill"], orders["decode"]
    across = (prefill, decode, ("local",) if prefill == decode else ("direct", "staged"))
    if orders["workload"]["attention"] != "host":
        return [across]
    return [("host:prefill", prefill, ("up",)), across, (decode, "host:decode", ("down",))]


def _moved(orders: Document) -> Document:
    """Layers, positions, unit and block of every handoff step, from the extent."""
    work = orders["workload"]
    block, prompt = _block(work["kv_extent"]), work["prompt_tokens"]
    unit, end = "layer", prompt
    if work["kv_extent"] == "allocated":
        unit, end = "array", cache_positions(work)
    elif block is not None:
        unit, end = "block", -(-prompt // block) * block
    moved: Document = {"positions": [0, end], "unit": unit, "block": block, "layout": work["layout"]}
    caches = _caches(orders)
    if caches and len(caches[0][1]["shape"]) >= 3:
        moved["layers"] = [0, caches[0][1]["shape"][-3]]
    return moved
