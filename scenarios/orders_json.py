"""Orders from JSON. A plan file may come from anybody, and what stands in it decides what the executor allocates and
copies, so every field is checked here, also against the others, before a single one is used.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from fleet.model import DTYPE_BYTES
from fleet.workload import Sampling
from planner.orders import ArenaOrder, BufferOrder, Fence, OrderedDevice, OrderedWorkload, Orders, Step
from planner.request import sampling_faults
from scenarios.orders_agree import check_agreement
from scenarios.schemas import MAX_TOKEN_ID, MAX_TOKENS, arena_id, device_id, physical_id
from scenarios.shapes import MAX_FIGURE, Sink, choice, integer, listing, number, record, text

MAX_DEVICES = 10_000
MAX_BUFFERS = 100_000
MAX_STEPS = 1_000_000

_SAMPLING = tuple(Sampling.__dataclass_fields__)

_range = listing(integer(), least=2, most=2)
_device = record(
    {
        "id": device_id,
        "topology_id": integer(0, 2**31 - 1),
        "kind": choice("gpu", "cpu", "npu"),
        "index": integer(0, 2**31 - 1, null=True),
        "host": device_id,
    },
    {"uuid": physical_id, "pci": physical_id},
)
_buffer = record(
    {
        "name": text(256, pattern=r"[A-Za-z0-9._/:\[\]-]{1,256}"),
        "shape": listing(integer(1), least=1, most=8),
        "dtype": choice(*DTYPE_BYTES),
        "layout": text(64, pattern=r"[a-z0-9_:.-]{1,64}"),
    }
)
_arena = record(
    {
        "arena": arena_id,
        "device": text(64, null=True),
        "buffers": listing(_buffer, most=MAX_BUFFERS),
    }
)
_step = record(
    {"op": choice("stage", "prefill", "handoff", "decode"), "dst": arena_id},
    {
        "src": arena_id,
        "tensor": text(256),
        "layers": _range,
        "positions": _range,
        "unit": choice("layer", "array", "block"),
        "block": integer(1),
        "mode": choice("up", "direct", "staged", "local", "down"),
        "chunk": integer(1),
        "layout": text(64),
    },
)
_workload = record(
    {
        "prompt_ids": listing(integer(0, 2**31 - 1), most=MAX_TOKENS, null=True),
        "prompt_tokens": integer(1),
        "passes": integer(1),
        "positions": integer(1),
        "batch": integer(1),
        "attention": choice("device", "host"),
        "kv_extent": text(32, pattern=r"filled|allocated|blocks:[1-9][0-9]{0,8}"),
        "kv_dtype": choice(*DTYPE_BYTES),
        "weights_dtype": choice(*DTYPE_BYTES),
        "prefill_chunk": integer(1),
        "layout": text(64),
    },
    {"sampling": record({"temperature": number(), "top_p": number(), "seed": integer(1)})},
)
_orders = record(
    {
        "prefill": device_id,
        "decode": device_id,
        "devices": listing(_device, least=1, most=MAX_DEVICES),
        "arenas": listing(_arena, least=1, most=MAX_DEVICES),
        "fences": listing(record({"arena": arena_id, "bytes": integer()}), most=MAX_DEVICES),
        "steps": listing(_step, least=1, most=MAX_STEPS),
        "workload": _workload,
    },
    {
        "prefill_chunk": integer(1),
        # An empty reference would be equal to any walk.
        "expect": listing(integer(0, MAX_TOKEN_ID), least=1, most=MAX_TOKENS, null=True),
    },
)


def check_orders(document: Any, path: str, sink: Sink) -> None:
    """Add every fault of an orders document to the sink: first its fields, then, when these stand, how they agree."""
    before = len(sink.faults)
    _orders(document, path, sink)
    if len(sink.faults) == before:
        _check_names(document, path, sink)
        _check_arenas(document, path, sink)
        _check_workload(document["workload"], f"{path}.workload", sink)
        known = {arena["arena"] for arena in document["arenas"]} | {device["id"] for device in document["devices"]}
        for index, step in enumerate(document["steps"]):
            _check_step(document, step, known, f"{path}.steps[{index}]", sink)
    if len(sink.faults) == before:
        check_agreement(document, path, sink)


def _check_names(document: dict[str, Any], path: str, sink: Sink) -> None:
    devices = document["devices"]
    for field in ("id", "topology_id"):
        seen: set[Any] = set()
        for index, device in enumerate(devices):
            if device[field] in seen:
                sink.add(f"{path}.devices[{index}].{field}", f"{device[field]} stands twice")
            seen.add(device[field])
    ids = {device["id"] for device in devices}
    for phase in ("prefill", "decode"):
        if document[phase] not in ids:
            sink.add(f"{path}.{phase}", f"{document[phase]} is none of the ordered devices ({', '.join(sorted(ids))})")


def _check_arenas(document: dict[str, Any], path: str, sink: Sink) -> None:
    ids = {device["id"] for device in document["devices"]}
    fences = Counter(fence["arena"] for fence in document["fences"])
    arenas: set[str] = set()
    for index, arena in enumerate(document["arenas"]):
        at = f"{path}.arenas[{index}]"
        if arena["arena"] in arenas:
            sink.add(f"{at}.arena", f"{arena['arena']} stands twice")
        arenas.add(arena["arena"])
        if arena["device"] is not None and arena["device"] not in ids:
            sink.add(f"{at}.device", f"{arena['device']} is none of the ordered devices")
        if fences[arena["arena"]] != 1:
            sink.add(f"{path}.fences", f"{fences[arena['arena']]} fences for arena {arena['arena']}; wanted one")
        _check_buffers(arena["buffers"], f"{at}.buffers", sink)
    for index, fence in enumerate(document["fences"]):
        if fence["arena"] not in arenas:
            sink.add(f"{path}.fences[{index}].arena", f"{fence['arena']} is no ordered arena")


def _check_buffers(buffers: list[dict[str, Any]], path: str, sink: Sink) -> None:
    names: set[str] = set()
    for index, buffer in enumerate(buffers):
        if buffer["name"] in names:
            sink.add(f"{path}[{index}].name", f"{buffer['name']} stands twice in one arena")
        names.add(buffer["name"])
        if math.prod(buffer["shape"]) * DTYPE_BYTES[buffer["dtype"]] > MAX_FIGURE:
            sink.add(f"{path}[{index}].shape", "more than 2^63-1 bytes")


def _check_workload(work: dict[str, Any], path: str, sink: Sink) -> None:
    ids = work["prompt_ids"]
    if ids is not None and len(ids) != work["prompt_tokens"]:
        sink.add(f"{path}.prompt_ids", f"{len(ids)} ids, but prompt_tokens says {work['prompt_tokens']}")
    if work["positions"] < work["passes"]:
        sink.add(f"{path}.positions", f"{work['positions']} cache positions for {work['passes']} passes")
    if sampling := work.get("sampling"):
        figures = {field: sampling[field] for field in _SAMPLING}
        for field, words in sampling_faults(**figures).items():
            sink.add(f"{path}.sampling.{field}", words)
        if not sampling["temperature"]:
            sink.add(f"{path}.sampling.temperature", "0 draws nothing; leave sampling out")


def _check_step(document: dict[str, Any], step: dict[str, Any], known: set[str], path: str, sink: Sink) -> None:
    op = step["op"]
    if step["dst"] not in known:
        sink.add(f"{path}.dst", f"{step['dst']} is no ordered arena")
    if op == "stage" and "tensor" not in step:
        sink.add(f"{path}.tensor", "missing; a stage step names the tensor it copies")
    if op in ("prefill", "decode") and step["dst"] != document[op]:
        sink.add(f"{path}.dst", f"{op} is placed on {document[op]}, not on {step['dst']}")
    for field in ("layers", "positions"):
        if field in step and step[field][0] > step[field][1]:
            sink.add(f"{path}.{field}", f"runs from {step[field][0]} down to {step[field][1]}")
    if op == "handoff":
        _check_handoff(document, step, known, path, sink)


def _check_handoff(document: dict[str, Any], step: dict[str, Any], known: set[str], path: str, sink: Sink) -> None:
    missing = [field for field in ("src", "tensor", "layers", "positions", "unit", "mode") if field not in step]
    for field in missing:
        sink.add(f"{path}.{field}", "missing; a handoff step has it")
    if missing:
        return
    if step["src"] not in known:
        sink.add(f"{path}.src", f"{step['src']} is no ordered arena")
    if step["tensor"] not in ("k", "v"):
        sink.add(f"{path}.tensor", f"{step['tensor']} is neither k nor v")
    if step["unit"] == "block" and "block" not in step:
        sink.add(f"{path}.block", "missing; unit block says how many positions a block has")
    block = step.get("block", 1)
    cached = -(-document["workload"]["positions"] // block) * block
    if step["positions"][1] > cached:
        sink.add(f"{path}.positions", f"up to {step['positions'][1]}, but the cache holds {cached} positions")


def orders_from_document(document: Any, source: str = "plan", path: str = "orders") -> Orders:
    """The Orders of a JSON document: the inverse of `planner.orders.orders_to_document`.

    Raises DescriptionError with every fault: types (true is not 1), ranges, sizes, and fields that disagree.
    """
    sink = Sink(source)
    check_orders(document, path, sink)
    sink.raise_if_any()
    work = document["workload"]
    ids = work["prompt_ids"]
    expect = document.get("expect")
    return Orders(
        prefill=document["prefill"],
        decode=document["decode"],
        devices=tuple(_ordered_device(row) for row in document["devices"]),
        arenas=tuple(_arena_order(row) for row in document["arenas"]),
        fences=tuple(Fence(arena=row["arena"], bytes=row["bytes"]) for row in document["fences"]),
        steps=tuple(_ordered_step(row) for row in document["steps"]),
        workload=OrderedWorkload(
            prompt_ids=None if ids is None else tuple(ids),
            sampling=_sampling(work.get("sampling")),
            **{key: work[key] for key in OrderedWorkload.__dataclass_fields__ if key not in ("prompt_ids", "sampling")},
        ),
        expect=None if expect is None else tuple(expect),
    )


def _sampling(row: dict[str, Any] | None) -> Sampling | None:
    return None if row is None else Sampling(**{field: row[field] for field in _SAMPLING})


def _ordered_device(row: dict[str, Any]) -> OrderedDevice:
    values: dict[str, Any] = {key: row.get(key) for key in OrderedDevice.__dataclass_fields__}
    return OrderedDevice(**values)


def _arena_order(row: dict[str, Any]) -> ArenaOrder:
    buffers = tuple(
        BufferOrder(name=b["name"], shape=tuple(b["shape"]), dtype=b["dtype"], layout=b["layout"])
        for b in row["buffers"]
    )
    return ArenaOrder(arena=row["arena"], device=row["device"], buffers=buffers)


def _ordered_step(row: dict[str, Any]) -> Step:
    given = {key: row[key] for key in Step.__dataclass_fields__ if key in row}
    values: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in given.items()}
    return Step(**values)
