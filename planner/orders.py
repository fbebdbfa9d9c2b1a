"""Orders: all that the executor is handed, and all that it may import from this package.

They say where each buffer lies, what is copied from where to where and in which order, and for which token ids. They
hold no predicted figure; the fences are the only bytes in them, because an executor must know where an arena ends.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from fleet.workload import Attention, Sampling

StepOp = Literal["stage", "prefill", "handoff", "decode"]
HandoffMode = Literal["up", "direct", "staged", "local", "down"]
CopyUnit = Literal["layer", "array", "block"]


@dataclass(frozen=True, kw_only=True, slots=True)
class OrderedDevice:
    """A device that takes part. `index` is the ordinal meant by the fleet; uuid and pci when known."""

    id: str
    topology_id: int
    kind: Literal["gpu", "cpu", "npu"]
    index: int | None
    host: str
    uuid: str | None = None
    pci: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class BufferOrder:
    """One buffer of an arena. Buffers lie in the order listed, each on a multiple of its element size.

    Names: `weights/<tensor>`, `kv/prefill/k`, `kv/decode/v`, `act/<name>`, `work/<name>`, `bounce`.
    `dtype` is `fp32` or `int32` where a device computes with it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    layout: str = "plain"


@dataclass(frozen=True, kw_only=True, slots=True)
class ArenaOrder:
    """The one mapping of a device, or of a host role (`host:prefill`, `host:decode`, `host:bounce`; device None)."""

    arena: str
    device: str | None
    buffers: tuple[BufferOrder, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Fence:
    """Nothing may be allocated in `arena` beyond `bytes`."""

    arena: str
    bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One order, carried out in the sequence listed.

    stage    copy checkpoint tensor `tensor` from the host to `dst`
    prefill  run the prefill passes on `dst`; decode likewise
    handoff  copy `tensor` (`k` or `v`), layers [l0, l1) and positions [p0, p1), from arena `src` to arena `dst`:
             one copy a `layer`, one for the whole `array`, or one a layer and `block` of `block` positions.
             mode `up` host to device, `direct` device to device, `local` within one device, `down` device to host,
             `staged` device to host to device over the buffer `bounce`, at most `chunk` positions at a time
    """

    op: StepOp
    dst: str
    src: str | None = None
    tensor: str | None = None
    layers: tuple[int, int] | None = None
    positions: tuple[int, int] | None = None
    unit: CopyUnit | None = None
    block: int | None = None
    mode: HandoffMode | None = None
    chunk: int | None = None
    layout: str = "plain"


@dataclass(frozen=True, kw_only=True, slots=True)
class OrderedWorkload:
    """The request. `prompt_ids` None: priced by count; such orders need a prompt of exactly P tokens to run.

    `sampling` None: the first largest logit is chosen, on the device; else an id is drawn on the host.
    """

    prompt_ids: tuple[int, ...] | None
    prompt_tokens: int
    passes: int
    positions: int
    batch: int
    attention: Attention
    kv_extent: str
    kv_dtype: str
    weights_dtype: str
    prefill_chunk: int
    layout: str
    sampling: Sampling | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Orders:
    """What to do. See `Step` for the sequence: stages, prefill, handoff hops, decode."""

    prefill: str
    decode: str
    devices: tuple[OrderedDevice, ...]
    arenas: tuple[ArenaOrder, ...]
    fences: tuple[Fence, ...]
    steps: tuple[Step, ...]
    workload: OrderedWorkload
    expect: tuple[int, ...] | None = None

    def device(self, device_id: str) -> OrderedDevice:
        """The ordered device of this id; KeyError when it takes no part."""
        for device in self.devices:
            if device.id == device_id:
                return device
        raise KeyError(device_id)

    def fence(self, arena: str) -> int:
        """Bytes that `arena` may hold."""
        return next(f.bytes for f in self.fences if f.arena == arena)


def orders_to_document(orders: Orders) -> dict[str, Any]:
    """The JSON form: absent fields are left out, tuples become lists."""
    steps = []
    for step in orders.steps:
        row: dict[str, Any] = {"op": step.op, "dst": step.dst}
        for key in ("src", "tensor", "layers", "positions", "unit", "block", "mode", "chunk"):
            value = getattr(step, key)
            if value is not None:
                row[key] = list(value) if isinstance(value, tuple) else value
        if step.op == "handoff":
            row["layout"] = step.layout
        steps.append(row)
    work = orders.workload
    return {
        "prefill": orders.prefill,
        "decode": orders.decode,
        "devices": [
            {"id": d.id, "topology_id": d.topology_id, "kind": d.kind, "index": d.index, "host": d.host}
            | {"uuid": d.uuid, "pci": d.pci}
            for d in orders.devices
        ],
        "arenas": [
            {
                "arena": a.arena,
                "device": a.device,
                "buffers": [
                    {"name": b.name, "shape": list(b.shape), "dtype": b.dtype, "layout": b.layout} for b in a.buffers
                ],
            }
            for a in orders.arenas
        ],
        "fences": [{"arena": f.arena, "bytes": f.bytes} for f in orders.fences],
        "steps": steps,
        "workload": {
            "prompt_ids": None if work.prompt_ids is None else list(work.prompt_ids),
            "prompt_tokens": work.prompt_tokens,
            "passes": work.passes,
            "positions": work.positions,
            "batch": work.batch,
            "attention": work.attention,
            "kv_extent": work.kv_extent,
            "kv_dtype": work.kv_dtype,
            "weights_dtype": work.weights_dtype,
            "prefill_chunk": work.prefill_chunk,
            "layout": work.layout,
            **sampling_to_document(work.sampling),
        },
        "prefill_chunk": work.prefill_chunk,
        "expect": None if orders.expect is None else list(orders.expect),
    }


def sampling_to_document(sampling: Sampling | None) -> dict[str, Any]:
    """The field `sampling` of a workload's document; nothing where ids are chosen greedily."""
    return {} if sampling is None else {"sampling": asdict(sampling)}
