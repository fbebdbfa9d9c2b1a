"""Laws of operations on packed buffers: the bits of the plain ones, and a refusal where an operand lies otherwise.

They bind the backends that dispatch on packed buffers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from executor.device import Backend, Buffer
from executor.packed.layout import packed_kv, packed_weight
from executor.packing import Packing
from fleet.errors import BackendError
from tests.conformance.bench import DEVICES, LABEL, Bench, bench, bits, refused
from tests.conformance.law import law

POSITIONS, HEADS, HEAD_DIM, TOKENS = 19, 2, 6, 3
WIDTH, ROWS = HEADS * HEAD_DIM, 21
FENCE = 1 << 16


def _random(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape, dtype=np.float32)


def _ground(b: Bench, packed: bool) -> dict[str, Buffer]:
    """A weight, an embedding table and one layer of both caches, plain or packed, with equal content."""
    kinds: dict[str, Packing | None] = dict.fromkeys(("w", "table", "k", "v"))
    if packed:
        weight = packed_weight((ROWS, WIDTH))
        assert weight is not None
        kinds = {"w": Packing("matrix", weight), "table": Packing("matrix", weight)}
        layers = {t: packed_kv(t, 1, POSITIONS, HEADS, HEAD_DIM) for t in ("k", "v")}  # type: ignore[arg-type]  # both are
        kinds |= {t: Packing(t, layer) for t, layer in layers.items()}  # type: ignore[arg-type]  # likewise
    shapes = {"w": (ROWS, WIDTH), "table": (ROWS, WIDTH), "k": (1, POSITIONS, WIDTH), "v": (1, POSITIONS, WIDTH)}
    out = {}
    for name, shape in shapes.items():
        buffer = b.backend.alloc(DEVICES[0], name, shape, "fp32", kinds[name])
        b.backend.copy_h2d(DEVICES[0], _random(*shape), buffer, LABEL)
        out[name] = buffer.at(0) if name in ("k", "v") else buffer
    return out


def _results(b: Bench, packed: bool) -> list[Any]:
    """The words that each operation leaves behind, caches in wire order."""
    ground, backend = _ground(b, packed), b.backend
    x = b.staged(DEVICES[0], "x", _random(TOKENS, WIDTH))
    ids = b.staged(DEVICES[0], "ids", np.array([20, 0, 16], np.int32))
    att = b.staged(DEVICES[0], "att", np.zeros((HEADS, POSITIONS), np.float32))
    outs = {name: b.staged(DEVICES[0], name, np.zeros((TOKENS, n), np.float32)) for name, n in _OUTS.items()}
    heads = {"n_heads": HEADS, "n_kv_heads": HEADS, "head_dim": HEAD_DIM}
    backend.dispatch(DEVICES[0], "embed", outs["rows"], ground["table"], ids, label=LABEL)
    backend.dispatch(DEVICES[0], "matmul", outs["product"], x, ground["w"], label=LABEL)
    for cache in ("k", "v"):
        backend.dispatch(DEVICES[0], "store", ground[cache].view(15, TOKENS), outs["rows"], label=LABEL)
    caches = ground["k"], ground["v"]
    backend.dispatch(DEVICES[0], "attention", outs["seen"], x, *caches, att, label=LABEL, pos0=15, **heads)
    return [bits(np.ascontiguousarray(buffer.wire())) for buffer in (*outs.values(), *caches)]


_OUTS = {"rows": WIDTH, "product": ROWS, "seen": WIDTH}


@law(moves_data=True)
def packed_operations_give_the_bits_of_plain_ones(backend_class: type[Backend]) -> None:
    if not backend_class.runs_packed:
        return
    found = []
    for packed in (False, True):
        with bench(backend_class, fence=FENCE) as b:
            found.append(_results(b, packed))
    assert np.array_equal(found[1][0], bits(_random(ROWS, WIDTH)[[20, 0, 16]])), "rows of the table are others"
    for name, one, other in zip((*_OUTS, "k", "v"), *found, strict=True):
        assert np.array_equal(one, other), f"{name} has other bits where operands are packed"


@law()
def packed_operands_that_an_operation_does_not_read_are_refused(backend_class: type[Backend]) -> None:
    if not backend_class.runs_packed:
        return
    with bench(backend_class, fence=FENCE) as b:
        packed, plain = _ground(b, True), _ground(b, False)
        x = b.staged(DEVICES[0], "x", _random(1, WIDTH))
        att = b.staged(DEVICES[0], "att", np.zeros((HEADS, POSITIONS), np.float32))
        heads = {"n_heads": HEADS, "n_kv_heads": HEADS, "head_dim": HEAD_DIM, "pos0": 3}
        wrong: list[tuple[str, Buffer, tuple[Buffer, ...], dict[str, int]]] = [
            ("add", packed["k"].view(2, 1), (x,), {}),
            ("rmsnorm", packed["v"].view(2, 1), (x, x.at(0)), {}),
            ("store", x, (packed["k"].view(2, 1),), {}),
            ("attention", b.staged(DEVICES[0], "o", _random(1, WIDTH)), (x, packed["k"], plain["v"], att), heads),
            ("attention", b.staged(DEVICES[0], "p", _random(1, WIDTH)), (x, packed["v"], packed["k"], att), heads),
            ("matmul", b.staged(DEVICES[0], "q", _random(1, POSITIONS)), (x, packed["k"]), {}),
            ("matmul", b.staged(DEVICES[0], "r", _random(1, 16)), (x, packed["k"].view(0, 16)), {}),
        ]
        for op, out, operands, scalars in wrong:
            before = b.backend.arenas()[DEVICES[0]].snapshot()
            with refused(BackendError, op, "packed otherwise than this operation reads"):
                b.backend.dispatch(DEVICES[0], op, out, *operands, label=LABEL, **scalars)
            assert np.array_equal(before, b.backend.arenas()[DEVICES[0]].snapshot())
