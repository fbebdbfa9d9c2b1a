"""Facts that the device ABI reports: what was allocated, copied and dispatched, on which device, by which order.

The base class of the ABI emits them, after the work and never from a hook, so that no backend words its own account.
Bytes are the `nbytes` of the buffers that took part; nothing here knows a predicted figure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

CopyKind = Literal["h2d", "d2h", "p2p", "d2d"]
PhaseName = Literal["stage", "prefill", "handoff", "decode"]


@dataclass(frozen=True, slots=True)
class Label:
    """Why something is done. The ABI carries it into the event and reads nothing from it.

    `order` is the index into `orders.steps`; `tensor` names what moves (`weights`, `tokens`, `next_token`, `k`, `v`,
    `act_in`, `act_out`, `logits`) or, of a dispatch, the weight tensor. `pos0` and `n_pos` are positions, `step` is the
    number of the forward pass; -1 means not applicable. `row_src` and `row_dst` are the ends of the waybill row where
    they differ from the ends of this copy (a leg of a staged handoff).
    """

    phase: PhaseName
    order: int
    tensor: str
    layer: int = -1
    pos0: int = -1
    n_pos: int = 0
    step: int = -1
    row_src: str = ""
    row_dst: str = ""


@dataclass(frozen=True, slots=True)
class Allocated:
    """A buffer was placed. `device` is a device id or a host role; `offset` is bytes from the start of its arena."""

    device: str
    topology_id: int | None
    name: str
    nbytes: int
    offset: int


@dataclass(frozen=True, slots=True)
class Freed:
    """A buffer was given back. `device` is a device id or a host role."""

    device: str
    topology_id: int | None
    name: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class Copied:
    """Bytes crossed an edge. `src` and `dst` are device ids or the id of a host; a host end has no topology id."""

    kind: CopyKind
    src: str
    dst: str
    src_topology_id: int | None
    dst_topology_id: int | None
    nbytes: int
    label: Label


@dataclass(frozen=True, slots=True)
class Dispatched:
    """A matmul ran. `device` is the one in whose arena the weight operand lies, found by its address.

    `shape` is (tokens, rows of the weight, columns of the weight).
    """

    device: str
    topology_id: int
    ordinal: int | None
    op: str
    shape: tuple[int, ...]
    label: Label


Event = Allocated | Freed | Copied | Dispatched
Listener = Callable[[Event], None]
