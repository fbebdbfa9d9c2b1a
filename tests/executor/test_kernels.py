"""Kernels against a slow oracle: NumPy f32, sums strictly in order, the C library's single precision functions."""

from __future__ import annotations

import ctypes
import ctypes.util
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executor import kernels
from executor.kernels import KERNELS, run_op
from executor.ops import OPS
from executor.stored_kernels import STORED
from fleet.errors import BackendError, BackendUnavailableError

F32 = npt.NDArray[np.float32]
ONE = np.float32(1)
compiled = settings(deadline=None, max_examples=40)  # the first call of a kernel compiles it
EXTENTS = st.integers(1, 37)

_libm = ctypes.CDLL(ctypes.util.find_library("m"))


def _c_function(name: str, arity: int) -> Callable[..., np.float32]:
    function = getattr(_libm, name)
    function.argtypes, function.restype = [ctypes.c_float] * arity, ctypes.c_float
    return lambda *values: np.float32(function(*map(float, values)))


expf, powf, cosf, sinf = (_c_function(n, a) for n, a in (("expf", 1), ("powf", 2), ("cosf", 1), ("sinf", 1)))


def random(seed: int, *shape: int) -> F32:
    """Floats of both signs and many magnitudes: the order of a sum shows in its last bits."""
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) * np.exp2(rng.integers(-6, 7, shape))).astype(np.float32)


def assert_same_bits(got: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> None:
    assert got.dtype == wanted.dtype == np.float32
    assert np.array_equal(got.view(np.uint32), wanted.view(np.uint32)), np.argwhere(got != wanted)[:5]


def ordered_sum(terms: F32) -> F32:
    """Sum over the last axis from 0 on, in order, in f32."""
    total = np.zeros(terms.shape[:-1], np.float32)
    for j in range(terms.shape[-1]):
        total = total + terms[..., j]
    return total


def oracle_matmul(x: F32, w: F32) -> F32:
    return np.stack([ordered_sum(w * row) for row in x])


def oracle_rmsnorm(x: F32, weight: F32) -> F32:
    scale = ONE / np.sqrt(ordered_sum(x * x) / np.float32(x.shape[1]) + np.float32(1e-5))
    return weight * (scale[:, None] * x)


def oracle_rope(row: F32, position: int, cos: F32, sin: F32, head_dim: int) -> F32:
    out = row.copy()
    for i in range(0, len(row), 2):
        c, s = cos[position, (i % head_dim) // 2], sin[position, (i % head_dim) // 2]
        out[i], out[i + 1] = row[i] * c - row[i + 1] * s, row[i] * s + row[i + 1] * c
    return out


def oracle_attention(q: F32, k: F32, v: F32, position: int, n_heads: int, n_kv_heads: int, head_dim: int) -> F32:
    out = np.zeros(n_heads * head_dim, np.float32)
    for h in range(n_heads):
        mine = slice(h * head_dim, (h + 1) * head_dim)
        shared = slice(h // (n_heads // n_kv_heads) * head_dim, (h // (n_heads // n_kv_heads) + 1) * head_dim)
        scores = ordered_sum(k[: position + 1, shared] * q[mine]) / np.sqrt(np.float32(head_dim))
        weights = np.array([expf(score - scores.max()) for score in scores], np.float32)
        weights = weights / ordered_sum(weights)
        out[mine] = ordered_sum(np.ascontiguousarray((weights[:, None] * v[: position + 1, shared]).T))
    return out


@compiled
@given(st.integers(1, 3), EXTENTS, EXTENTS, st.integers(0, 999))
def test_matmul_sums_each_row_in_order(n_tokens: int, d: int, n: int, seed: int) -> None:
    x, w, out = random(seed, n_tokens, n), random(seed + 1, d, n), random(seed, n_tokens, d)
    run_op("matmul", out, x, w)
    assert_same_bits(out, oracle_matmul(x, w))


@pytest.mark.parametrize("d", [1, 8, 11])
def test_matmul_fuses_nothing_and_reorders_nothing(d: int) -> None:
    step = np.float32(1 + 2**-12)  # its square needs one bit more than f32 has
    out = np.empty((1, d), np.float32)
    run_op("matmul", out, np.array([[1, step]], np.float32), np.tile(np.array([-1, step], np.float32), (d, 1)))
    assert (out == np.float32(2**-11)).all()
    run_op("matmul", out, np.ones((1, 4), np.float32), np.tile(np.array([1e8, 1, -1e8, 1], np.float32), (d, 1)))
    assert (out == 1).all()


@compiled
@given(st.integers(1, 3), EXTENTS, st.integers(0, 999), st.booleans())
def test_rmsnorm_has_the_bits_of_the_oracle_also_in_place(n_tokens: int, n: int, seed: int, in_place: bool) -> None:
    x, weight = random(seed, n_tokens, n), random(seed + 1, n)
    wanted = oracle_rmsnorm(x, weight)
    out = x if in_place else np.empty_like(x)
    run_op("rmsnorm", out, x, weight)
    assert_same_bits(out, wanted)


@compiled
@given(
    st.integers(1, 3), st.integers(1, 4), st.integers(1, 3), st.integers(1, 5), st.integers(0, 5), st.integers(0, 99)
)
def test_rope_rotates_q_and_the_shorter_k(n: int, n_kv: int, group: int, half: int, pos0: int, seed: int) -> None:
    head_dim = 2 * half
    q, k = random(seed, n, n_kv * group * head_dim), random(seed + 1, n, n_kv * head_dim)
    cos, sin = random(seed + 2, pos0 + n, half), random(seed + 3, pos0 + n, half)
    wanted = [np.stack([oracle_rope(row, pos0 + t, cos, sin, head_dim) for t, row in enumerate(a)]) for a in (q, k)]
    run_op("rope", q, k, cos, sin, pos0=pos0, head_dim=head_dim)
    assert_same_bits(q, wanted[0])
    assert_same_bits(k, wanted[1])


@compiled
@given(st.integers(1, 70), st.integers(1, 48))
def test_rope_table_has_the_bits_of_the_c_library(n_positions: int, half: int) -> None:
    cos, sin = np.empty((n_positions, half), np.float32), np.empty((n_positions, half), np.float32)
    run_op("rope_table", cos, sin, head_dim=2 * half)
    for h in range(half):
        frequency = ONE / powf(10000.0, np.float32(2 * h) / np.float32(2 * half))
        angles = np.arange(n_positions).astype(np.float32) * frequency
        assert_same_bits(np.ascontiguousarray(cos[:, h]), np.array([cosf(a) for a in angles], np.float32))
        assert_same_bits(np.ascontiguousarray(sin[:, h]), np.array([sinf(a) for a in angles], np.float32))


@compiled
@given(
    st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.integers(1, 5), st.integers(0, 19), st.integers(0, 99)
)
def test_attention_has_the_bits_of_the_oracle(n: int, n_kv: int, group: int, half: int, pos0: int, seed: int) -> None:
    n_heads, head_dim = n_kv * group, 2 * half
    heads = {"n_heads": n_heads, "n_kv_heads": n_kv, "head_dim": head_dim}
    q = random(seed, n, n_heads * head_dim)
    k, v = random(seed + 1, pos0 + n + 2, n_kv * head_dim), random(seed + 2, pos0 + n + 2, n_kv * head_dim)
    out, att = random(seed, n, n_heads * head_dim), random(seed, n_heads, pos0 + n + 2)
    run_op("attention", out, q, k, v, att, pos0=pos0, **heads)
    wanted = [oracle_attention(row, k, v, pos0 + t, **heads) for t, row in enumerate(q)]
    assert_same_bits(out, np.stack(wanted))


def test_attention_does_not_see_positions_after_its_own() -> None:
    q, k, v = random(1, 2, 8), random(2, 6, 4), random(3, 6, 4)
    out, again = np.empty_like(q), np.empty_like(q)
    heads = {"pos0": 2, "n_heads": 4, "n_kv_heads": 2, "head_dim": 2}
    run_op("attention", out, q, k, v, np.empty((4, 6), np.float32), **heads)
    k[4:], v[4:] = np.nan, np.nan
    run_op("attention", again, q, k, v, np.empty((4, 6), np.float32), **heads)
    assert_same_bits(out, again)


@compiled
@given(st.integers(1, 3), EXTENTS, st.integers(0, 999))
def test_add_and_swiglu_have_the_bits_of_the_oracle(n_tokens: int, n: int, seed: int) -> None:
    a, b = random(seed, n_tokens, n), random(seed + 1, n_tokens, n)
    total, gated = a.copy(), a.copy()
    run_op("add", total, b)
    assert_same_bits(total, a + b)
    run_op("swiglu", gated, b)
    sigmoid = np.array([ONE / (ONE + expf(-value)) for value in a.ravel()], np.float32).reshape(a.shape)
    assert_same_bits(gated, a * sigmoid * b)


def test_exp_is_single_precision_over_a_wide_sweep() -> None:
    # expf and exp rounded to f32 differ in about one value of a thousand, so only a sweep tells them apart
    n = 20_000
    values = np.linspace(-20, 20, n, dtype=np.float32).reshape(1, n)
    gated, k, att = values.copy(), np.ascontiguousarray(np.repeat(values.T, 2, axis=1)), np.empty((1, n), np.float32)
    run_op("swiglu", gated, np.ones_like(values))
    sigmoid = np.array([ONE / (ONE + expf(-value)) for value in values[0]], np.float32)
    assert_same_bits(gated[0], values[0] * sigmoid)
    q = np.array([[1, 0]], np.float32)
    run_op("attention", np.empty_like(q), q, k, k, att, pos0=n - 1, n_heads=1, n_kv_heads=1, head_dim=2)
    scores = values[0] / np.sqrt(np.float32(2))
    weights = np.array([expf(score - scores.max()) for score in scores], np.float32)
    assert_same_bits(att[0], weights / ordered_sum(weights))


@pytest.mark.parametrize("op", ["matmul", "rmsnorm", "attention", "rope"])
def test_tokens_together_give_the_bits_of_one_by_one(op: str) -> None:
    together, single = random(5, 4, 24), random(5, 4, 24)
    x, w, weight, cache, table = random(6, 4, 24), random(7, 24, 24), random(8, 24), random(9, 9, 8), random(10, 9, 4)
    heads = {"n_heads": 3, "n_kv_heads": 1, "head_dim": 8}

    def call(out: F32, rows: F32, pos0: int) -> None:
        if op == "matmul":
            run_op(op, out, rows, w)
        elif op == "rmsnorm":
            run_op(op, out, rows, weight)
        elif op == "attention":
            run_op(op, out, rows, cache, cache, np.empty((3, 9), np.float32), pos0=pos0, **heads)
        else:
            run_op(op, out, rows.copy(), table, table, pos0=pos0, head_dim=8)

    call(together, x, 3)
    for t in range(4):
        call(single[t : t + 1], x[t : t + 1], 3 + t)
    assert_same_bits(together, single)


@compiled
@given(st.lists(st.floats(width=32) | st.sampled_from([float("nan"), 0.0, -0.0, 1.0]), min_size=1, max_size=12))
def test_argmax_is_the_first_largest_and_a_nan_never_wins(values: list[float]) -> None:
    out = np.array([-1], np.int32)
    run_op("argmax", out, np.array(values, np.float32))
    best = 0
    for i, value in enumerate(values):
        if value > values[best]:
            best = i
    assert out[0] == best


def test_argmax_of_nan_at_the_start_and_of_ties() -> None:
    out = np.array([-1], np.int32)
    for values, wanted in (([np.nan, 5, 6], 0), ([1, np.nan, 2, 2], 2), ([np.nan] * 3, 0), ([-1, -1], 0)):
        run_op("argmax", out, np.array(values, np.float32))
        assert out[0] == wanted


def test_embed_takes_rows_and_refuses_ids_outside_the_table() -> None:
    table, x = random(1, 5, 3), np.zeros((2, 3), np.float32)
    run_op("embed", x, table, np.array([4, 0], np.int32))
    assert_same_bits(x, table[[4, 0]])
    for bad in (5, -1, 0x7FA12345):
        with pytest.raises(BackendError, match=rf"token id {bad} at index 1 is not below 5"):
            run_op("embed", x, table, np.array([1, bad], np.int32))


def test_one_compile_serves_read_only_operands_and_all_shapes() -> None:
    weight = random(1, 9, 5)
    weight.flags.writeable = False
    out = np.empty((1, 9), np.float32)
    run_op("matmul", out, random(2, 1, 5), weight)
    compiled = len(KERNELS["matmul"].signatures)
    run_op("matmul", out[:, :4], random(2, 1, 5), weight[:4])
    assert_same_bits(out[:, :4], oracle_matmul(random(2, 1, 5), weight)[:, :4])
    assert len(KERNELS["matmul"].signatures) == compiled


def test_operands_that_do_not_fit_are_refused_before_the_kernel_runs() -> None:
    x, w, out = random(1, 1, 4), random(2, 3, 4), np.zeros((1, 3), np.float32)
    locked = out.copy()
    locked.flags.writeable = False
    cases: list[tuple[str, tuple[Any, ...], dict[str, int], str]] = [
        ("matmul", (out, x, np.asfortranarray(w)), {}, "strided"),
        ("matmul", (x[:, :3], x, w), {}, "overlaps"),
        ("matmul", (out, x, w.astype(np.float64)), {}, "w is float64"),
        ("matmul", (locked, x, w), {}, "read-only"),
        ("matmul", (out, x, w[:2]), {}, "w has shape"),
        ("matmul", (out, x), {}, "2 arrays"),
        ("matmul", (out, x, w), {"head_dim": 2}, "takes none"),
        ("rope_table", (x, x.copy()), {"head_dim": 6}, "width 4"),
        ("rope", (x, x.copy(), w, w), {"pos0": 0}, "takes pos0, head_dim"),
        ("gelu", (x, x), {}, "known: embed"),
    ]
    for op, arrays, scalars, words in cases:
        with pytest.raises(BackendError, match=words):
            run_op(op, *arrays, **scalars)


def test_attention_and_rope_refuse_positions_and_heads_that_are_not_there() -> None:
    q, cache, att = random(1, 2, 8), random(2, 6, 4), random(3, 4, 6)
    good = {"pos0": 4, "n_heads": 4, "n_kv_heads": 2, "head_dim": 2}
    run_op("attention", np.empty_like(q), q, cache, cache, att, **good)
    for change, words in (
        ({"pos0": 5}, "positions 5..6 of a cache or table that has 6"),
        ({"pos0": -1}, "positions -1"),
        ({"n_heads": 3}, "3 heads cannot share 2"),
        ({"n_heads": 2}, "do not fit 2 heads"),
        ({"n_kv_heads": 0}, "0 KV heads"),
        ({"head_dim": 3}, "even"),
        ({"head_dim": 0}, "even"),
    ):
        with pytest.raises(BackendError, match=words):
            run_op("attention", np.empty_like(q), q, cache, cache, att, **(good | change))
    with pytest.raises(BackendError, match="longer than those of q"):
        run_op("rope", random(1, 2, 4), random(1, 2, 8), random(1, 4, 2), random(1, 4, 2), pos0=0, head_dim=4)


def test_a_vector_math_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels.config, "USING_SVML", True)
    with pytest.raises(BackendUnavailableError, match="NUMBA_DISABLE_INTEL_SVML=1"):
        kernels.require_c_library_math()


def test_the_table_of_operations_and_the_kernels_have_the_same_names_and_arguments() -> None:
    beside = {op: kernel for op, kernel in STORED.items() if op not in KERNELS}
    assert [*KERNELS, *beside] == list(OPS)
    for op, kernel in [*KERNELS.items(), *STORED.items()]:
        spec = OPS[op]
        wanted = [name for name, _, _ in spec.arrays] + list(spec.scalars)
        assert list(kernel.py_func.__code__.co_varnames[: kernel.py_func.__code__.co_argcount]) == wanted
