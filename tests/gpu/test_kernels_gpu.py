"""The CUDA kernels beside the processor's, on shapes that do and do not fill a warp, a tile or a load of 16 bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from executor.device import DeviceSpec
from executor.events import Label
from executor.kernels import run_op
from tests.gpu.card import backend, needs

pytestmark = needs(1)
LABEL = Label("stage", 0, "weights")


def on_card(op: str, *arrays: Any, **scalars: int) -> list[Any]:
    """The arrays after the operation on a card, which gets them copied up first."""
    spec = DeviceSpec(id="gpu:0", topology_id=500, kind="gpu", index=0, fence_bytes=64 << 20)
    with backend()([spec]) as made:
        placed = [made.alloc_and_transfer("gpu:0", str(n), array, LABEL) for n, array in enumerate(arrays)]
        made.dispatch("gpu:0", op, *placed, label=LABEL, **scalars)
        results = [np.empty_like(array) for array in arrays]
        for buffer, result in zip(placed, results, strict=True):
            made.copy_d2h("gpu:0", buffer, result, LABEL)
    return results


def close(op: str, *arrays: Any, written: int = 1, **scalars: int) -> None:
    """Both ways agree to a few units of f32 in the norm."""
    here = [array.copy() for array in arrays]
    run_op(op, *here, **scalars)
    there = on_card(op, *arrays, **scalars)
    for mine, other in zip(here[:written], there[:written], strict=True):
        error = np.linalg.norm(mine.astype(np.float64) - other) / max(float(np.linalg.norm(mine)), 1e-30)
        assert error < 2e-6, f"{op}: {error}"
    for array, other in zip(arrays[written:], there[written:], strict=True):
        assert op == "attention" or np.array_equal(array, other), f"{op} wrote an operand"


def rand(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(("rows", "d", "n"), [(1, 5, 7), (1, 64, 64), (1, 172, 64), (1, 32000, 288), (3, 65, 33),
    (64, 64, 172), (200, 512, 512), (256, 1024, 512)])  # fmt: skip
def test_matmul(rows: int, d: int, n: int) -> None:
    close("matmul", np.zeros((rows, d), np.float32), rand(rows, n), rand(d, n))


def test_a_product_by_the_library_is_in_order_with_what_follows() -> None:
    size, turns = 2048, 6
    x, w = rand(size, size) / np.float32(64), rand(size, size) / np.float32(64)
    spec = DeviceSpec(id="gpu:0", topology_id=500, kind="gpu", index=0, fence_bytes=256 << 20)
    with backend()([spec]) as made:
        a, b = (made.alloc_and_transfer("gpu:0", name, x, LABEL) for name in "ab")
        weight = made.alloc_and_transfer("gpu:0", "w", w, LABEL)
        for _ in range(turns):  # each product reads what the addition before it wrote
            made.dispatch("gpu:0", "matmul", b, a, weight, label=LABEL)
            made.dispatch("gpu:0", "add", a, b, label=LABEL)
        found = np.empty_like(x)
        made.copy_d2h("gpu:0", a, found, LABEL)
    expected = x.astype(np.float64)
    for _ in range(turns):
        expected += expected @ w.T.astype(np.float64)
    assert np.linalg.norm(found - expected) / np.linalg.norm(expected) < 1e-5


@pytest.mark.parametrize(("rows", "n"), [(1, 64), (3, 100), (2, 4096)])
def test_rmsnorm(rows: int, n: int) -> None:
    close("rmsnorm", np.zeros((rows, n), np.float32), rand(rows, n), rand(n))


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(8, 4, 8), (4, 4, 48), (4, 1, 128), (2, 2, 256)])
@pytest.mark.parametrize(("rows", "pos0"), [(1, 0), (1, 63), (5, 0), (4, 300)])
def test_attention_and_rope(heads: int, kv_heads: int, head_dim: int, rows: int, pos0: int) -> None:
    positions, width = pos0 + rows + 2, heads * head_dim
    q, k, v = rand(rows, width), rand(positions, kv_heads * head_dim), rand(positions, kv_heads * head_dim) + 1
    out, scratch = np.zeros_like(q), np.zeros((heads, positions), np.float32)
    sizes = {"n_heads": heads, "n_kv_heads": kv_heads, "head_dim": head_dim}
    close("attention", out, q, k, v, scratch, pos0=pos0, **sizes)
    tables = [np.zeros((positions, head_dim // 2), np.float32) for _ in "cs"]
    run_op("rope_table", *tables, head_dim=head_dim)
    close("rope", q, rand(rows, kv_heads * head_dim), *tables, written=2, pos0=pos0, head_dim=head_dim)


def test_rope_table() -> None:
    close("rope_table", *(np.zeros((512, 24), np.float32) for _ in "cs"), written=2, head_dim=48)


@pytest.mark.parametrize("rows", [1, 7])
def test_elementwise(rows: int) -> None:
    close("add", rand(rows, 172), rand(rows, 172))
    close("swiglu", rand(rows, 172), rand(rows, 172))
    ids = np.arange(rows, dtype=np.int32)[::-1].copy()
    close("embed", np.zeros((rows, 64), np.float32), rand(512, 64), ids)


def test_argmax_is_the_first_largest_and_never_a_nan() -> None:
    for values in ([1, 5, 5, 2], [np.nan, 5, 6], [1, np.nan, 0], [-np.inf, -np.inf], [3] * 5000, [0] * 4999 + [1]):
        logits, out = np.array(values, np.float32), np.zeros(1, np.int32)
        expected = out.copy()
        run_op("argmax", expected, logits)
        assert on_card("argmax", out, logits)[0] == expected, values
