"""Rows of floats in sixteen lanes: the largest of them, and, for the fast mode only, what needs exp.

The C library's expf, which the strict mode uses, is a call a number.

exp(x) = 2^k * exp(f) with k = round(x / ln 2), f = x - k ln 2 in two steps (Cody and Waite 1980), and exp(f) by its
Taylor polynomial of degree 6 on |f| <= ln 2 / 2, where the remainder is below 1.2e-7. Inputs are clamped to where the
result is a normal number; a NaN stays one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from llvmlite import ir

from executor.packed.exps import emit_exact_exp
from executor.packed.lanes import (
    F32,
    I32,
    I64,
    POINTER,
    VECTOR,
    at,
    cgutils,
    constant,
    intrinsic,
    lane_mask,
    masked_load,
    masked_store,
    splat,
    types,
)
from executor.packed.layout import LANES

_ROUND = 12582912.0  # 1.5 * 2^23: adding it leaves the nearest integer in the low bits of the sum
_LN2_HIGH = 0.693359375
_LN2_LOW = math.log(2) - _LN2_HIGH
_LOWEST, _HIGHEST = -87.0, 88.0
_DEGREE = 6
_FAST = ("contract",)
_WORDS = ir.VectorType(I32, LANES)


def emit_exp(builder: Any, x: Any) -> Any:
    """exp of each lane."""
    x = builder.select(builder.fcmp_ordered("<", x, constant(_LOWEST)), constant(_LOWEST), x)
    x = builder.select(builder.fcmp_ordered(">", x, constant(_HIGHEST)), constant(_HIGHEST), x)
    scaled = builder.fmul(x, constant(1 / math.log(2)))
    shifted = builder.fadd(scaled, constant(_ROUND))
    k = builder.fsub(shifted, constant(_ROUND))  # no reassociation here: it would undo the rounding
    f = builder.fsub(x, builder.fmul(k, constant(_LN2_HIGH), flags=_FAST), flags=_FAST)
    f = builder.fsub(f, builder.fmul(k, constant(_LN2_LOW), flags=_FAST), flags=_FAST)
    value = constant(1 / math.factorial(_DEGREE))
    for power in range(_DEGREE - 1, -1, -1):
        value = builder.fadd(builder.fmul(value, f, flags=_FAST), constant(1 / math.factorial(power)), flags=_FAST)
    exponent = builder.shl(builder.bitcast(shifted, _WORDS), ir.Constant(_WORDS, [23] * LANES))
    scaled_bits = builder.add(builder.bitcast(value, _WORDS), exponent)
    finite = builder.fcmp_ordered("ord", value, value)
    return builder.select(finite, builder.bitcast(scaled_bits, VECTOR), value)


def _each(
    builder: Any, n: Any, pointers: list[Any], fillers: list[Any], work: Callable[[list[Any]], tuple[Any, bool]]
) -> None:
    """Run `work` on the vectors of n floats at `pointers`; its first result is stored at the first pointer if asked.

    The last, partial vector reads `fillers` in the lanes past n and writes none of them.
    """
    whole = builder.sdiv(n, ir.Constant(I64, LANES))
    with cgutils.for_range(builder, whole, intp=I64) as loop:
        here = [at(builder, p, builder.mul(loop.index, ir.Constant(I64, LANES * 4))) for p in pointers]
        value, stored = work([builder.load(p, align=4, typ=VECTOR) for p in here])
        if stored:
            builder.store(value, here[0], align=4)
    rest = builder.sub(n, builder.mul(whole, ir.Constant(I64, LANES)))
    with builder.if_then(builder.icmp_signed(">", rest, ir.Constant(I64, 0))):
        mask = lane_mask(builder, rest)
        here = [at(builder, p, builder.mul(whole, ir.Constant(I64, LANES * 4))) for p in pointers]
        value, stored = work([masked_load(builder, p, mask, f) for p, f in zip(here, fillers, strict=True)])
        if stored:
            masked_store(builder, value, here[0], mask)


@intrinsic
def largest(typing: Any, row: Any, n: Any) -> Any:
    """The largest of n floats at address `row`, NaN aside; minus infinity where there is no other."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _emit_largest(builder, builder.inttoptr(args[0], POINTER), args[1])

    return types.float32(types.int64, types.int64), emit


def _emit_largest(builder: Any, pointer: Any, n: Any) -> Any:
    lowest = constant(-math.inf)
    top = cgutils.alloca_once_value(builder, lowest)

    def work(values: list[Any]) -> tuple[Any, bool]:
        builder.store(_larger(builder, values[0], builder.load(top, typ=VECTOR)), top)
        return None, False

    _each(builder, n, [pointer], [lowest], work)
    return _over_lanes(builder, builder.load(top, typ=VECTOR), _larger)


@intrinsic
def exact_exps(typing: Any, row: Any, n: Any, top: Any) -> Any:
    """row[i] = exp(row[i] - top), n floats at address `row`, with the bits of the C library."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        top = splat(builder, args[2])

        def work(values: list[Any]) -> tuple[Any, bool]:
            return emit_exact_exp(builder, builder.fsub(values[0], top)), True

        _each(builder, args[1], [builder.inttoptr(args[0], POINTER)], [top], work)
        return context.get_dummy_value()

    return types.none(types.int64, types.int64, types.float32), emit


@intrinsic
def exact_swiglu(typing: Any, h1: Any, h3: Any, n: Any) -> Any:
    """h1 = h1 * (1 / (1 + exp(-h1))) * h3 in this order, n floats from the addresses on, exp as the C library's."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointers = [builder.inttoptr(a, POINTER) for a in args[:2]]

        def work(values: list[Any]) -> tuple[Any, bool]:
            gate, other = values
            bottom = builder.fadd(constant(1.0), emit_exact_exp(builder, builder.fneg(gate)))
            sigmoid = builder.fdiv(constant(1.0), bottom)
            return builder.fmul(builder.fmul(gate, sigmoid), other), True

        _each(builder, args[2], pointers, [constant(0.0)] * 2, work)
        return context.get_dummy_value()

    return types.none(types.int64, types.int64, types.int64), emit


@intrinsic
def fast_softmax(typing: Any, row: Any, n: Any) -> Any:
    """Softmax in place of n floats at address `row`. Sums run in sixteen lanes, then over the lanes."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer, n = builder.inttoptr(args[0], POINTER), args[1]
        lowest = constant(-math.inf)
        best, total = _emit_largest(builder, pointer, n), cgutils.alloca_once_value(builder, constant(0.0))
        best = splat(builder, best)

        def raised(values: list[Any]) -> tuple[Any, bool]:
            value = emit_exp(builder, builder.fsub(values[0], best))
            builder.store(builder.fadd(builder.load(total, typ=VECTOR), value), total)
            return value, True

        _each(builder, n, [pointer], [lowest], raised)
        whole = _over_lanes(builder, builder.load(total, typ=VECTOR), lambda b, x, y: b.fadd(x, y))
        scale = splat(builder, builder.fdiv(ir.Constant(F32, 1.0), whole))
        _each(builder, n, [pointer], [lowest], lambda values: (builder.fmul(values[0], scale), True))
        return context.get_dummy_value()

    return types.none(types.int64, types.int64), emit


@intrinsic
def fast_swiglu(typing: Any, h1: Any, h3: Any, n: Any) -> Any:
    """h1 = h1 / (1 + exp(-h1)) * h3, n floats from the addresses `h1` and `h3` on."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointers = [builder.inttoptr(a, POINTER) for a in args[:2]]

        def work(values: list[Any]) -> tuple[Any, bool]:
            gate, other = values
            bottom = builder.fadd(constant(1.0), emit_exp(builder, builder.fneg(gate)))
            return builder.fmul(builder.fdiv(gate, bottom), other), True

        _each(builder, args[2], pointers, [constant(0.0)] * 2, work)
        return context.get_dummy_value()

    return types.none(types.int64, types.int64, types.int64), emit


def _larger(builder: Any, one: Any, other: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", one, other), one, other)


def _over_lanes(builder: Any, vector: Any, join: Callable[[Any, Any, Any], Any]) -> Any:
    lanes = [builder.extract_element(vector, ir.Constant(I32, i)) for i in range(LANES)]
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = [join(builder, a, b) for a, b in zip(lanes[:half], lanes[half:], strict=True)]
    return lanes[0]
