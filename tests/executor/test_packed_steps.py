"""Steps on packed memory against the plain kernels: the same bits, for odd extents, poison and NaN too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executor import kernels
from executor.arena import Arena
from executor.packed import jit, steps
from executor.packed.lanes import FAST, STRICT
from executor.packed.layout import Packed, pack
from executor.packed.pages import LARGE_PAGE, advise_large_pages

F32 = npt.NDArray[np.float32]
compiled = settings(deadline=None, max_examples=60)
GUARD = np.uint32(0x7FB00001)


def at(array: npt.NDArray[Any]) -> int:
    return int(array.ctypes.data)


def random(seed: int, *shape: int) -> F32:
    """Floats of both signs and many magnitudes: the order of a sum shows in its last bits."""
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) * np.exp2(rng.integers(-6, 7, shape))).astype(np.float32)


def same_bits(got: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> bool:
    return np.array_equal(np.ascontiguousarray(got).view(np.uint32), np.ascontiguousarray(wanted).view(np.uint32))


def packed(w: F32) -> F32:
    out = np.full(Packed((), *w.shape).shape, GUARD, np.uint32).view(np.float32)
    pack(w, out)
    return out


@compiled
@given(
    seed=st.integers(0, 99),
    n_tokens=st.integers(1, 20),
    n=st.integers(1, 70),
    rows=st.integers(1, 150),
    widest=st.sampled_from([1, 2, 4]),
)
def test_multiply_has_the_bits_of_the_plain_matmul_and_writes_nothing_else(
    seed: int, n_tokens: int, n: int, rows: int, widest: int
) -> None:
    w, x = random(seed, rows, n), random(seed + 1, n_tokens, n)
    wanted = np.empty((n_tokens, rows), np.float32)
    kernels.matmul(wanted, x, w)
    out = np.full((n_tokens + 1, rows + 3), GUARD, np.uint32).view(np.float32)
    v = packed(w)
    steps.multiply(at(out), (rows + 3) * 4, at(x), n * 4, n_tokens, at(v), n * 64, n, rows, widest, STRICT)
    assert same_bits(out[:n_tokens, :rows], wanted)
    assert (out.view(np.uint32)[:, rows:] == GUARD).all()
    assert (out.view(np.uint32)[n_tokens] == GUARD).all()


@compiled
@given(seed=st.integers(0, 99), n=st.integers(1, 300), spread=st.sampled_from([0.1, 3.0, 200.0]))
def test_strict_softmax_and_swiglu_are_the_plain_ones_and_the_fast_ones_are_close(
    seed: int, n: int, spread: float
) -> None:
    rng = np.random.default_rng(seed)
    scores = (rng.standard_normal(n) * spread).astype(np.float32)
    other = rng.standard_normal(n).astype(np.float32)
    root = np.float32(np.sqrt(np.float32(8)))
    wanted = scores / root
    kernels.softmax(wanted, n)
    got, fast = scores.copy(), scores.copy()
    steps.softmax(at(got), n, root, STRICT)
    steps.softmax(at(fast), n, root, FAST)
    assert same_bits(got, wanted)
    assert np.allclose(fast, wanted, rtol=1e-5, atol=1e-30)
    wanted = scores.reshape(1, n).copy()
    kernels.swiglu(wanted, other.reshape(1, n))
    got, fast = scores.copy(), scores.copy()
    steps.swiglu(at(got), at(other), n, STRICT)
    steps.swiglu(at(fast), at(other), n, FAST)
    assert same_bits(got, wanted[0])
    assert np.allclose(fast, wanted[0], rtol=1e-5, atol=1e-30)


def test_a_nan_stays_one_in_fast_mode() -> None:
    row = np.array([1.0, np.nan, 2.0], np.float32)
    steps.swiglu(at(row), at(np.ones(3, np.float32)), 3, FAST)
    assert np.isnan(row).tolist() == [False, True, False]


@compiled
@given(values=st.lists(st.sampled_from([0.0, -0.0, 1.0, 2.0, float("nan"), float("inf"), -float("inf")]), min_size=1))
def test_argmax_is_the_plain_one_with_ties_and_nan(values: list[float]) -> None:
    logits, wanted = np.array(values, np.float32), np.zeros(1, np.int32)
    kernels.argmax(wanted, logits)
    assert steps.argmax(at(logits), len(values)) == wanted[0]


@pytest.mark.parametrize("head_dim", [2, 6, 16, 48])
def test_the_rope_table_is_the_plain_one(head_dim: int) -> None:
    plain, mine = np.zeros((2, 37, head_dim // 2), np.float32), np.zeros((2, 37, head_dim // 2), np.float32)
    kernels.rope_table(plain[0], plain[1], head_dim)
    steps.rope_table(at(mine[0]), at(mine[1]), 37, head_dim)
    assert same_bits(mine, plain)


def test_compiled_code_is_stale_when_any_file_of_the_package_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one.py", "two.py", "jit.py"):
        (tmp_path / name).write_text("pass\n")
    monkeypatch.setattr(jit, "__file__", str(tmp_path / "jit.py"))
    before = jit.source_stamp()
    assert jit.source_stamp() == before
    (tmp_path / "two.py").write_text("pass  # another\n")
    assert jit.source_stamp() != before
    monkeypatch.undo()
    dispatcher: Any = steps.multiply
    assert dispatcher._cache._cache_file._source_stamp == jit.source_stamp()


def test_asking_for_large_pages_changes_no_byte_and_stays_inside() -> None:
    arena = Arena("gpu:0", 3 * LARGE_PAGE + 4096, 0x7FA00001)
    asked = advise_large_pages(arena.address, arena.fence)
    assert asked in (0, 2 * LARGE_PAGE, 3 * LARGE_PAGE)
    assert (arena.snapshot() == 0x7FA00001).all()
    assert advise_large_pages(arena.address, LARGE_PAGE - 1) == 0
    arena.close()
