"""Program + workload + placement -> the placement graph: stages and caches, each in a memory space.

A transfer is an edge whose two ends lie in different spaces, or a handoff. Nothing else produces a row: if the waybill
lacks a line, an edge is missing here.
"""

from __future__ import annotations

import itertools
from functools import lru_cache
from typing import Any

import networkx as nx

from fleet.machine import Fleet
from fleet.model import DTYPE_BYTES, Model
from fleet.placement import Placement
from fleet.same import Same
from fleet.workload import Attention, Workload
from planner.caches import held_parts, part_transfer
from planner.program import program_of

TOKEN_BYTES = 4
"""A token id crosses as one int32."""
LOGIT_BYTES = 4
"""Logits are computed, and cross, in f32."""

Node = tuple[str, ...]


def placement_graph(fleet: Fleet, model: Model, workload: Workload, placement: Placement) -> Any:
    """The placed request as a networkx MultiDiGraph.

    Node attribute: `space` (a device id or a host id). Edge attributes: `phase`, `tensor` (the row), `bytes` and
    `payload` in all, `copies` in all, `per_pass` (bytes, copies) or None, `order` (place among the rows).
    """
    graph: Any = nx.MultiDiGraph()
    hosts = {device: _host_of(fleet, device) for device in placement.devices}
    _place_weights(graph, model, workload, placement, hosts)
    if workload.attention == "device":
        _place_token_edges(graph, model, workload, placement, hosts)
    _place_stages(graph, model, workload, placement, hosts)
    if workload.hands_over:
        _place_handoff(graph, model, workload, placement, hosts)
    return graph


def _host_of(fleet: Fleet, device_id: str) -> str:
    device = fleet.device(device_id)
    if device is None:
        raise KeyError(device_id)
    return device.host


def weights_bytes(model: Model, workload: Workload) -> tuple[int, int]:
    """(bytes, copies) of the named tensors that the mode reads on a device, one copy each."""
    return _weights_bytes(Same(model), workload.attention, workload.weights_dtype)


@lru_cache(maxsize=256)
def _weights_bytes(same: Same[Model], attention: Attention, dtype: str) -> tuple[int, int]:
    model = same.value
    staged = model.staged_tensors(attention)
    copies = sum(tensor.repeat for tensor in staged)
    if dtype == model.weights_dtype:
        return sum(tensor.nbytes for tensor in staged), copies
    return sum(tensor.n_elements for tensor in staged) * DTYPE_BYTES[dtype], copies


def _place_weights(graph: Any, model: Model, workload: Workload, placement: Placement, hosts: dict[str, str]) -> None:
    nbytes, copies = weights_bytes(model, workload)
    for order, device in enumerate(placement.devices):
        graph.add_node(("checkpoint", device), space=hosts[device])
        graph.add_node(("weights", device), space=device)
        _connect(graph, ("checkpoint", device), ("weights", device), "stage", "weights", order, (nbytes, copies))


def _place_token_edges(
    graph: Any, model: Model, workload: Workload, placement: Placement, hosts: dict[str, str]
) -> None:
    """Ids up, the chosen id down; after the first decode pass the chosen id stays on the device.

    Where ids are drawn on the host, the logits come down instead and every drawn id goes up.
    """
    batch, prompt_passes, drawn = workload.batch, workload.prefill_passes, workload.sampling is not None
    calls = -(-prompt_passes // workload.prefill_chunk)
    one = (TOKEN_BYTES * batch, batch)
    down = (LOGIT_BYTES * model.vocab_size * batch, batch) if drawn else one
    stage, result = ("classifier", "logits") if drawn else ("argmax", "next_token")
    prefill_host, decode_host = hosts[placement.prefill], hosts[placement.decode]
    graph.add_node(("prompt",), space=prefill_host)
    graph.add_node(("sampled",), space=prefill_host)
    tokens = (TOKEN_BYTES * prompt_passes * batch, calls * batch)
    _connect(
        graph, ("prompt",), ("prefill", "embed"), "prefill", "tokens", 10, tokens,
        per_pass=one if workload.prefill_chunk == 1 else None,
    )  # fmt: skip
    if workload.passes >= workload.prompt_tokens:
        _connect(graph, ("prefill", stage), ("sampled",), "prefill", result, 11, down)
    if workload.decode_passes:
        graph.add_node(("first",), space=decode_host)
        graph.add_node(("text",), space=decode_host)
        passes = workload.decode_passes
        up = _times(one, passes if drawn else 1)
        _connect(
            graph, ("first",), ("decode", "embed"), "decode", "tokens", 40, up, per_pass=one if drawn else None,
        )  # fmt: skip
        every = _times(down, passes)
        _connect(graph, ("decode", stage), ("text",), "decode", result, 41, every, per_pass=down)


def _times(moved: tuple[int, int], passes: int) -> tuple[int, int]:
    return moved[0] * passes, moved[1] * passes


def _place_stages(graph: Any, model: Model, workload: Workload, placement: Placement, hosts: dict[str, str]) -> None:
    """Both phases are the same program; only the device differs. In host mode just the matmuls are on the device."""
    program = program_of(model)
    stages = program.stages
    width = 4  # activations are computed in f32
    for phase, device, passes, base in (
        ("prefill", placement.prefill, workload.prefill_passes, 10),
        ("decode", placement.decode, workload.decode_passes, 40),
    ):
        if workload.attention == "device":
            graph.add_nodes_from(_nodes(phase, tuple(stages)), space=device)
            continue
        for name, stage in stages.items():
            graph.add_node((phase, name), space=device if stage.op == "matmul" else hosts[device])
        if not passes:
            continue
        for src, dst, _, elements in program.operands:
            up = stages[dst].op == "matmul"
            if not up and stages[src].op != "matmul":
                continue
            repeat = stages[dst if up else src].repeat * workload.batch
            one = (elements * width * repeat, repeat)
            total = (one[0] * passes, one[1] * passes)
            tensor, order = ("act_in", base) if up else ("act_out", base + 1)
            _connect(graph, (phase, src), (phase, dst), phase, tensor, order, total, per_pass=one)


@lru_cache(maxsize=8)
def _nodes(phase: str, stages: tuple[str, ...]) -> tuple[Node, ...]:
    return tuple((phase, name) for name in stages)


def _place_handoff(graph: Any, model: Model, workload: Workload, placement: Placement, hosts: dict[str, str]) -> None:
    """The cache moves; no tensor is split. In host mode it is staged up, across and down."""
    parts = held_parts(model, workload)
    ends: list[tuple[Node, str]] = [(("kv", "prefill"), placement.prefill), (("kv", "decode"), placement.decode)]
    if workload.attention == "host":
        ends.insert(0, (("kv", "host:prefill"), hosts[placement.prefill]))
        ends.append((("kv", "host:decode"), hosts[placement.decode]))
    for node, space in ends:
        graph.add_node(node, space=space)
    for hop, ((src, _), (dst, _)) in enumerate(itertools.pairwise(ends)):
        for number, part in enumerate(parts):
            payload, nbytes, copies = part_transfer(part, workload)
            order = 20 + len(parts) * hop + number
            _connect(graph, src, dst, "handoff", part.name, order, (nbytes, copies), payload=payload)


def _connect(
    graph: Any,
    src: Node,
    dst: Node,
    phase: str,
    tensor: str,
    order: int,
    moved: tuple[int, int],
    *,
    payload: int | None = None,
    per_pass: tuple[int, int] | None = None,
) -> None:
    graph.add_edge(
        src, dst, phase=phase, tensor=tensor, order=order, bytes=moved[0], copies=moved[1],
        payload=moved[0] if payload is None else payload, per_pass=per_pass,
    )  # fmt: skip
