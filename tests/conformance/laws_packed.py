"""Laws of packed buffers: the wire's bytes are counted and moved, in the wire's order, and no padding is touched.

They bind the backends that have the layout.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from executor.device import Backend, Buffer
from executor.events import Copied
from executor.packed.layout import KV_TENSORS, LAYOUT, packed_kv, packed_weight
from executor.packing import Packing
from tests.conformance.bench import DEVICES, LABEL, Bench, bench, bits, specs
from tests.conformance.law import law

POSITIONS, HEADS, HEAD_DIM, LAYERS = 19, 2, 6, 2
FENCE = 1 << 16


def _packed(b: Bench, device: str) -> dict[str, Buffer]:
    """A weight of two layers with 5 rows of 3, and both caches, none of which fills its blocks."""
    weight = packed_weight((2, 5, 3))
    assert weight is not None
    kinds: Any = {"matrix": weight} | {t: packed_kv(t, LAYERS, POSITIONS, HEADS, HEAD_DIM) for t in KV_TENSORS}
    packings = {kind: Packing(kind, packed) for kind, packed in kinds.items()}
    return {kind: b.backend.alloc(device, kind, p.wire_shape, "fp32", p) for kind, p in packings.items()}


def _content(shape: tuple[int, ...], start: float) -> Any:
    return (np.arange(np.prod(shape), dtype=np.float32) + np.float32(start)).reshape(shape)


@law(moves_data=True)
def packed_copies_keep_the_wire_and_touch_no_padding(backend_class: type[Backend]) -> None:
    if LAYOUT not in backend_class.layouts:
        return
    with bench(backend_class, fence=FENCE) as b:
        here, there = (_packed(b, device) for device in DEVICES)
        written = dict.fromkeys(DEVICES, 0)
        for kind, buffer in here.items():
            content = _content(buffer.shape, 1000.0)
            b.backend.copy_h2d(DEVICES[0], content, buffer, LABEL)
            b.backend.copy_p2p(DEVICES[0], buffer, DEVICES[1], there[kind], LABEL)
            down = np.zeros(buffer.shape, np.float32)
            b.backend.copy_d2h(DEVICES[1], there[kind], down, LABEL)
            assert np.array_equal(bits(down), bits(content)), f"{kind} came back changed"
            for device in DEVICES:
                written[device] += content.size
                arena = b.backend.arenas()[device]
                got = int(np.count_nonzero(arena.snapshot() != arena.poison))
                assert got == written[device], f"{got} words of {device} were written, {written[device]} came"


@law(moves_data=True)
def packed_windows_are_positions_of_the_wire(backend_class: type[Backend]) -> None:
    if LAYOUT not in backend_class.layouts:
        return
    with bench(backend_class, fence=FENCE) as b:
        here, there = (_packed(b, device) for device in DEVICES)
        for kind in ("k", "v"):
            content = _content(here[kind].shape, 1.0)
            b.backend.copy_h2d(DEVICES[0], content, here[kind], LABEL)
            source, target = here[kind].at(1).view(5, 13), there[kind].at(0).view(2, 13)
            b.backend.copy_p2p(DEVICES[0], source, DEVICES[1], target, LABEL)
            row, all_of_it = np.zeros((1, *target.shape[1:]), np.float32), np.zeros(there[kind].shape, np.float32)
            b.backend.copy_d2h(DEVICES[1], target.view(12, 1), row, LABEL)
            assert np.array_equal(bits(row), bits(content[1, 17:18]))
            b.backend.copy_d2h(DEVICES[1], there[kind], all_of_it, LABEL)
            expected = np.full(all_of_it.shape, b.backend.arenas()[DEVICES[1]].poison, np.uint32)
            expected[0, 2:15] = content[1, 5:18].view(np.uint32)
            assert np.array_equal(bits(all_of_it), expected.reshape(-1))


@law()
def packed_copies_count_the_bytes_of_the_wire(backend_class: type[Backend]) -> None:
    if LAYOUT not in backend_class.layouts:
        return
    with bench(backend_class, fence=FENCE) as b:
        here, there = (_packed(b, device) for device in DEVICES)
        for kind, buffer in here.items():
            before, nbytes = len(b.events), 4 * int(np.prod(buffer.shape))
            b.backend.copy_h2d(DEVICES[0], _content(buffer.shape, 0.0), buffer, LABEL)
            b.backend.copy_p2p(DEVICES[0], buffer, DEVICES[1], there[kind], LABEL)
            b.backend.copy_d2h(DEVICES[1], there[kind], np.zeros(buffer.shape, np.float32), LABEL)
            counted = [event.nbytes for event in b.events[before:] if isinstance(event, Copied)]
            assert counted == [nbytes] * 3, f"{kind}: {counted} B were counted, {nbytes} B three times are right"
            assert buffer.held_bytes > nbytes


@law()
def a_device_aligns_its_buffers(backend_class: type[Backend]) -> None:
    devices, hosts = specs()
    devices = [replace(device, alignment=64) for device in devices]
    with backend_class(devices, hosts) as backend:
        for device in DEVICES:
            for name in ("one", "two", "three"):
                buffer = backend.alloc(device, name, (5,), "fp32")
                assert (buffer.address - backend.arenas()[device].address) % 64 == 0
