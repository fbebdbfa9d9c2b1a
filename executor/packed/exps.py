"""exp of sixteen floats with the bits of the C library's expf, which the strict mode promises, at a vector's speed.

The method is the one that the C libraries in common use share (glibc since 2.28, musl, bionic; published as ARM's
"optimized routines"): exp(x) = 2^(k/32) * 2^r with k = round(32 x / ln 2), in doubles, 2^(i/32) from a table and 2^r by
a cubic. Its steps round in an order that compilers choose, so a double may differ in its last bits from the library's.
Where that could change the float, which is where the double lies next to the middle of two floats (once in some ten
million), and wherever |x| >= 87 or x is NaN, the library itself is asked. What remains to be known is that the library
at hand works like this: `executor.packed.steps.own_exp_agrees` compares.
"""

from __future__ import annotations

import struct
from typing import Any

from llvmlite import ir

from executor.packed.lanes import (
    F32,
    I1,
    I32,
    I64,
    POINTER,
    VECTOR,
    at,
    cgutils,
    constant,
    function_of,
)
from executor.packed.layout import LANES

_STEPS = 32
_LARGEST = 87.0
_SHIFT = 1.5 * 2.0**52  # adding it leaves the nearest integer in the low bits of a double
_CUBIC = tuple(
    float.fromhex(c) / _STEPS**power
    for c, power in (("0x1.c6af84b912394p-5", 3), ("0x1.ebfce50fac4f3p-3", 2), ("0x1.62e42ff0c52d6p-1", 1))
)
_PER_STEP = float.fromhex("0x1.71547652b82fep+0") * _STEPS
_BELOW_FLOAT = 29  # bits of a double's fraction that a float drops
_CLOSE = 16  # units of the last place of a double that count as next to the middle
_ANY_ORDER = ("contract",)

_DOUBLES = ir.VectorType(ir.DoubleType(), LANES)
_WORDS = ir.VectorType(I64, LANES)
_MASK = ir.VectorType(I1, LANES)


def _doubles(value: float) -> Any:
    return ir.Constant(_DOUBLES, [value] * LANES)


def _words(value: int) -> Any:
    return ir.Constant(_WORDS, [value] * LANES)


def _table() -> Any:
    """The bits of 2^(i/32), i << 47 taken off: adding k << 47 then leaves those of 2^(k/32)."""
    bits = [struct.unpack("<q", struct.pack("<d", 2.0 ** (i / _STEPS)))[0] - (i << 47) for i in range(_STEPS)]
    return ir.Constant(ir.ArrayType(I64, _STEPS), bits)


def emit_exact_exp(builder: Any, x: Any) -> Any:
    """exp of each lane, as the C library rounds it."""
    return builder.call(function_of(builder, "kvwaybill_exact_exp", VECTOR, [VECTOR], _emit), [x])


def _emit(builder: Any, args: Any) -> Any:
    (x,) = args
    z = builder.fmul(builder.fpext(x, _DOUBLES), _doubles(_PER_STEP))
    shifted = builder.fadd(z, _doubles(_SHIFT))
    k = builder.bitcast(shifted, _WORDS)
    r = builder.fsub(z, builder.fsub(shifted, _doubles(_SHIFT)))
    base = builder.add(_looked_up(builder, builder.and_(k, _words(_STEPS - 1))), builder.shl(k, _words(47)))
    first, second, third = (_doubles(c) for c in _CUBIC)
    upper = builder.fadd(builder.fmul(first, r, flags=_ANY_ORDER), second, flags=_ANY_ORDER)
    lower = builder.fadd(builder.fmul(third, r, flags=_ANY_ORDER), _doubles(1.0), flags=_ANY_ORDER)
    squared = builder.fmul(r, r)
    y = builder.fadd(builder.fmul(upper, squared, flags=_ANY_ORDER), lower, flags=_ANY_ORDER)
    y = builder.fmul(y, builder.bitcast(base, _DOUBLES))
    return _checked(builder, x, y)


def _looked_up(builder: Any, index: Any) -> Any:
    table = cgutils.global_constant(builder, "kvwaybill_exp_table", _table())
    start = builder.ptrtoint(table, I64)
    one = builder.insert_element(ir.Constant(_WORDS, ir.Undefined), start, ir.Constant(I32, 0))
    zeros = ir.Constant(ir.VectorType(I32, LANES), [0] * LANES)
    starts = builder.shuffle_vector(one, ir.Constant(_WORDS, ir.Undefined), zeros)
    addresses = builder.add(starts, builder.shl(index, _words(3)))
    pointers = ir.VectorType(POINTER, LANES)
    kind = ir.FunctionType(_WORDS, [pointers, I32, _MASK, _WORDS])
    gather = cgutils.get_or_insert_function(builder.module, kind, f"llvm.masked.gather.v{LANES}i64.v{LANES}p0")
    every = ir.Constant(_MASK, [1] * LANES)
    return builder.call(gather, [builder.inttoptr(addresses, pointers), ir.Constant(I32, 8), every, _words(0)])


def _checked(builder: Any, x: Any, y: Any) -> Any:
    """y as floats; all sixteen from the library where one of them is close to a middle, or x out of range."""
    dropped = builder.and_(builder.bitcast(y, _WORDS), _words((1 << _BELOW_FLOAT) - 1))
    from_middle = builder.sub(dropped, _words((1 << (_BELOW_FLOAT - 1)) - _CLOSE))
    close = builder.icmp_unsigned("<", from_middle, _words(2 * _CLOSE))
    size = cgutils.get_or_insert_function(builder.module, ir.FunctionType(VECTOR, [VECTOR]), f"llvm.fabs.v{LANES}f32")
    far = builder.fcmp_unordered(">=", builder.call(size, [x]), constant(_LARGEST))
    odd = builder.bitcast(builder.or_(close, far), ir.IntType(LANES))
    values = builder.fptrunc(y, VECTOR)
    before = builder.block
    with builder.if_then(builder.icmp_unsigned("!=", odd, ir.Constant(ir.IntType(LANES), 0)), likely=False):
        asked = _ask_library(builder, x)
        after = builder.block
    result = builder.phi(VECTOR)
    result.add_incoming(values, before)
    result.add_incoming(asked, after)
    return result


def _ask_library(builder: Any, x: Any) -> Any:
    room = builder.inttoptr(builder.ptrtoint(cgutils.alloca_once_value(builder, x), I64), POINTER)
    kind = ir.FunctionType(F32, [F32])
    exp = cgutils.get_or_insert_function(builder.module, kind, "llvm.exp.f32")
    with cgutils.for_range(builder, ir.Constant(I64, LANES), intp=I64) as loop:
        one = at(builder, room, builder.mul(loop.index, ir.Constant(I64, 4)))
        builder.store(builder.call(exp, [builder.load(one, typ=F32)]), one)
    return builder.load(room, typ=VECTOR)
