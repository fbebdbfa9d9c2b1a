"""bf16 and fp16 are widened exactly, rounded to nearest even, and summed in one order for any number of tokens."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from executor.kernels import run_op
from executor.rotation import frequencies
from executor.stored_weights import count_not_finite
from fleet.errors import BackendError
from fleet.models.recipe import Rope
from tests.hub_checkpoints import bf16_bits

EVERY = np.arange(1 << 16, dtype=np.uint16).reshape(256, 256)


def wide(words: Any, dtype: str) -> Any:
    return (words.astype(np.uint32) << 16).view(np.float32) if dtype == "bf16" else words.view(np.float16).astype("f4")


def held(words: Any, dtype: str) -> Any:
    return words if dtype == "bf16" else words.view(np.float16)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_every_pattern_is_widened_exactly(dtype: str) -> None:
    x = np.zeros((256, 256), np.float32)
    run_op("embed", x, held(EVERY, dtype), np.arange(256, dtype=np.int32))
    np.testing.assert_array_equal(x, wide(EVERY, dtype))
    assert (np.signbit(x) == np.signbit(wide(EVERY, dtype))).all()


def difficult_values() -> Any:
    """Random words of f32, and those at and beside the middle of two neighbours of each narrow type."""
    rng = np.random.default_rng(0)
    words = rng.integers(0, 1 << 32, (64, 1024), dtype=np.uint64).astype(np.uint32)
    middles = EVERY.astype(np.uint32).reshape(-1)
    for row, beside in enumerate((-1, 0, 1)):
        words[row] = (middles[::64] << 16) + np.uint32(0x8000 + beside)
    edges = np.array([0x477FEFFF, 0x477FF000, 0x38800000, 0x387FFFFF, 0x33000000, 0x33000001, 0x7F7FFFFF], np.uint32)
    words[3, : edges.size] = edges
    return words.view(np.float32)


def test_rounding_to_fp16_is_that_of_numpy() -> None:
    values = difficult_values()
    cache = np.zeros(values.shape, np.float16)
    run_op("store", cache, values)
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = values.astype(np.float16)
    assert (np.isnan(cache) == np.isnan(wanted)).all()
    finite = ~np.isnan(wanted)
    assert (cache.view(np.uint16)[finite] == wanted.view(np.uint16)[finite]).all()


def test_rounding_to_bf16_is_to_the_nearest_and_to_even_and_keeps_nan() -> None:
    values = difficult_values()
    cache = np.zeros(values.shape, np.uint16)
    run_op("store", cache, values)
    nan = np.isnan(values)
    assert (cache[~nan] == bf16_bits(values)[~nan]).all()
    assert np.isnan(wide(cache, "bf16")[nan]).all()


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_a_matmul_of_many_tokens_has_the_bits_of_one_at_a_time(dtype: str) -> None:
    rng = np.random.default_rng(1)
    values = rng.standard_normal((37, 61), dtype=np.float32)
    w = bf16_bits(values) if dtype == "bf16" else values.astype(np.float16)
    x = rng.standard_normal((5, 61), dtype=np.float32)
    many, one = np.zeros((5, 37), np.float32), np.zeros((1, 37), np.float32)
    run_op("matmul", many, x, w)
    for t in range(5):
        run_op("matmul", one, x[t : t + 1].copy(), w)
        assert (one[0].view(np.uint32) == many[t].view(np.uint32)).all()
    np.testing.assert_allclose(many, x.astype(np.float64) @ wide(w, dtype).astype(np.float64).T, atol=2e-4)


def test_operands_of_two_types_are_refused() -> None:
    q, k = np.zeros((1, 4), np.float32), np.zeros((2, 4), np.uint16)
    with pytest.raises(BackendError, match="of one type"):
        run_op(
            "attention", np.zeros((1, 4), np.float32), q, k, k.view(np.float16), np.zeros((1, 2), np.float32), pos0=0,
            n_heads=1, n_kv_heads=1, head_dim=4,
        )  # fmt: skip
    tables = np.zeros((3, 2), np.float32), np.zeros((3, 2), np.float32)
    with pytest.raises(BackendError, match="column 2 of tables of width 2"):
        run_op("rope_column", *tables, column=2, frequency_bits=0, scale_bits=0)


def test_a_factor_of_one_scales_nothing() -> None:
    plain = frequencies(Rope(theta=10000.0), 64)
    assert plain[0] == 1.0
    assert plain == sorted(plain, reverse=True)
    for kind in ("linear", "llama3", "yarn"):
        rope = Rope(kind=kind, theta=10000.0, factor=1.0, original=2048.0)  # type: ignore[arg-type]  # one of the kinds
        assert all(map(math.isclose, frequencies(rope, 64), plain))


def test_scaling_slows_the_slow_pairs_and_leaves_the_fast_ones() -> None:
    plain = frequencies(Rope(theta=500000.0), 128)
    for kind in ("llama3", "yarn"):
        rope = Rope(kind=kind, theta=500000.0, factor=8.0, original=8192.0)  # type: ignore[arg-type]  # one of the kinds
        scaled = frequencies(rope, 128)
        assert scaled[0] == plain[0]
        assert math.isclose(scaled[-1], plain[-1] / 8)
        assert all(slow / 8.000001 <= one <= slow * 1.000001 for one, slow in zip(scaled, plain, strict=True))


def test_nan_and_infinity_are_counted_by_type() -> None:
    assert count_not_finite(np.array([0x7F80, 0xFF80, 0x7F81, 0xFFC0, 0x3F80], np.uint16)) == (2, 2)
    assert count_not_finite(np.array([np.nan, np.inf, 1], np.float16)) == (1, 1)
