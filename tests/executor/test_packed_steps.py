"""Steps on packed memory against the plain kernels: the same bits, for odd extents, poison and NaN too."""

from __future__ import annotations

import math
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
from executor.packed.rows import exact_exps

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


@pytest.mark.parametrize("n_tokens", [5, 12, 13, 31])
@pytest.mark.parametrize(("n", "rows"), [(1024, 270), (1025, 33), (2100, 16), (1023, 300)])
def test_many_tokens_over_wide_and_tall_matrices_have_the_bits_of_the_plain_matmul(
    n_tokens: int, n: int, rows: int
) -> None:
    w, x = random(n, rows, n), random(rows, n_tokens, n)
    wanted = np.empty((n_tokens, rows), np.float32)
    kernels.matmul(wanted, x, w)
    out, v = np.full((n_tokens, rows + 3), GUARD, np.uint32).view(np.float32), packed(w)
    steps.multiply(at(out), (rows + 3) * 4, at(x), n * 4, n_tokens, at(v), n * 64, n, rows, 4, STRICT)
    assert same_bits(out[:, :rows], wanted)
    assert (out.view(np.uint32)[:, rows:] == GUARD).all()


NEXT_TO_A_MIDDLE = (
    0x337FFFFF, 0x33800000, 0x343FFFFF, 0x3B0B4517, 0x3D8932E8, 0x3E73ADE2, 0x3FBE11A6, 0x400D98C7, 0x40C12C37,
    0x4197276C, 0x4202422F, 0xB3000000, 0xBA253B54, 0xBBE861B2, 0xBEAE4609, 0xBFDE3004, 0xC0D7626B, 0xC23DD581,
    0xC27C65D9,
)  # fmt: skip
"""Floats whose exp in doubles lies within 16 units of the last place of the middle of two floats: of all that are
smaller than 87 in size there are 29, found by going through them. For two, the order of roundings decides."""


@jit.compiled
def libm_exps(values: F32) -> None:
    for i in range(len(values)):
        values[i] = math.exp(values[i])


@jit.compiled
def exps_of(row: int, n: int) -> None:
    exact_exps(row, n, np.float32(0))


@compiled
@given(st.lists(st.floats(width=32), min_size=1, max_size=50))
def test_exp_has_the_bits_of_the_c_library_for_any_floats(values: list[float]) -> None:
    check_exp(np.array(values, np.float32))


def test_exp_has_the_bits_of_the_c_library_at_its_edges_and_where_it_rounds_late() -> None:
    edges = [87.0, 88.0, 89.0, 103.0, 104.0, np.nextafter(np.float32(87), np.float32(0)), 0.0, np.inf]
    check_exp(np.array([*edges, *(-e for e in edges), np.nan], np.float32))
    check_exp(np.array(NEXT_TO_A_MIDDLE, np.uint32).view(np.float32))
    check_exp(np.random.default_rng(3).integers(0, 1 << 32, 300_000, dtype=np.uint32).view(np.float32))


def check_exp(values: F32) -> None:
    wanted, got = values.copy(), values.copy()
    libm_exps(wanted)
    exps_of(at(got), len(got))
    both_nan = np.isnan(wanted) & np.isnan(got)
    assert same_bits(np.where(both_nan, np.float32(0), got), np.where(both_nan, np.float32(0), wanted))


def test_the_c_library_at_hand_is_compared_before_its_exp_is_replaced() -> None:
    probes = (np.arange(16384) - 8192).astype(np.float32) * np.float32(172 / 16384)
    wanted, got = probes.copy(), probes.copy()
    libm_exps(wanted)
    exps_of(at(got), len(got))
    assert steps.own_exp_agrees() == int(same_bits(got, wanted))


@compiled
@given(seed=st.integers(0, 99), n=st.integers(1, 300), spread=st.sampled_from([0.1, 3.0, 200.0]), own=st.integers(0, 1))
def test_strict_softmax_and_swiglu_are_the_plain_ones_and_the_fast_ones_are_close(
    seed: int, n: int, spread: float, own: int
) -> None:
    rng = np.random.default_rng(seed)
    scores = (rng.standard_normal(n) * spread).astype(np.float32)
    other = rng.standard_normal(n).astype(np.float32)
    root = np.float32(np.sqrt(np.float32(8)))
    wanted = scores / root
    kernels.softmax(wanted, n)
    got, fast = scores.copy(), scores.copy()
    steps.softmax(at(got), n, root, STRICT, own)
    steps.softmax(at(fast), n, root, FAST, own)
    assert same_bits(got, wanted)
    assert np.allclose(fast, wanted, rtol=1e-5, atol=1e-30)
    wanted = scores.reshape(1, n).copy()
    kernels.swiglu(wanted, other.reshape(1, n))
    got, fast = scores.copy(), scores.copy()
    steps.swiglu(at(got), at(other), n, STRICT, own)
    steps.swiglu(at(fast), at(other), n, FAST, own)
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
