"""Sixteen rows side by side: the one inner loop of everything that sums, as LLVM code.

A tile holds `blocks` x `tokens` vectors of sixteen sums. It walks j upwards once; each sum adds w[row, j] * x[token, j]
to itself, multiply and add apart, so it has the bits of a plain loop over its row. A loop vectoriser does not find this
by itself: it would have to know that the packed rows are meant to be lanes. Vectors of sixteen f32 are legal on any
target; LLVM splits them where registers are narrower.

`mode` is a type, not a value, so that each mode is a specialisation of its own: `STRICT` (None) as above, `FAST` (True)
with multiply and add fused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import binding, ir
from numba import extending
from numba import types as _types
from numba.core import cgutils as _cgutils

from executor.packed.layout import ALIGNMENT, LANES

types: Any = _types
cgutils: Any = _cgutils
intrinsic: Callable[[Callable[..., Any]], Any] = extending.intrinsic

STRICT = None
FAST = True

F32 = ir.FloatType()
I1 = ir.IntType(1)
I8 = ir.IntType(8)
I32 = ir.IntType(32)
I64 = ir.IntType(64)
VECTOR = ir.VectorType(F32, LANES)
MASK = ir.VectorType(I1, LANES)
POINTER = ir.PointerType()
COLUMN_BYTES = LANES * 4


def splat(builder: Any, scalar: Any) -> Any:
    """A vector with `scalar` in every lane."""
    one = builder.insert_element(ir.Constant(VECTOR, ir.Undefined), scalar, ir.Constant(I32, 0))
    zeros = ir.Constant(ir.VectorType(I32, LANES), [0] * LANES)
    return builder.shuffle_vector(one, ir.Constant(VECTOR, ir.Undefined), zeros)


def constant(value: float) -> Any:
    """A vector constant."""
    return ir.Constant(VECTOR, [value] * LANES)


def at(builder: Any, pointer: Any, nbytes: Any) -> Any:
    """The pointer `nbytes` further on."""
    return builder.gep(pointer, [nbytes], source_etype=I8)


def lane_mask(builder: Any, lanes: Any) -> Any:
    """True in the first `lanes` lanes."""
    wide = ir.VectorType(I64, LANES)
    one = builder.insert_element(ir.Constant(wide, ir.Undefined), lanes, ir.Constant(I32, 0))
    zeros = ir.Constant(ir.VectorType(I32, LANES), [0] * LANES)
    limit = builder.shuffle_vector(one, ir.Constant(wide, ir.Undefined), zeros)
    return builder.icmp_signed("<", ir.Constant(wide, list(range(LANES))), limit)


def masked_load(builder: Any, pointer: Any, mask: Any, other: Any) -> Any:
    """The lanes of `mask` from memory, `other` elsewhere."""
    kind = ir.FunctionType(VECTOR, [POINTER, I32, MASK, VECTOR])
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.masked.load.v{LANES}f32.p0")
    return builder.call(function, [pointer, ir.Constant(I32, 4), mask, other])


def masked_store(builder: Any, value: Any, pointer: Any, mask: Any) -> None:
    """Write the lanes of `mask`; the others are not touched."""
    kind = ir.FunctionType(ir.VoidType(), [VECTOR, POINTER, I32, MASK])
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.masked.store.v{LANES}f32.p0")
    builder.call(function, [value, pointer, ir.Constant(I32, 4), mask])


def is_fast(mode: Any) -> bool:
    """Whether the type of a `mode` argument asks for the fast specialisation."""
    return not isinstance(mode, types.NoneType)


@intrinsic
def f32_pointer(typing: Any, address: Any) -> Any:
    """A pointer to f32 from an address, for `numba.carray`."""
    return _pointer(types.float32)


@intrinsic
def i32_pointer(typing: Any, address: Any) -> Any:
    """A pointer to int32 from an address, for `numba.carray`."""
    return _pointer(types.int32)


@intrinsic
def u32_pointer(typing: Any, address: Any) -> Any:
    """A pointer to uint32 from an address, for `numba.carray`."""
    return _pointer(types.uint32)


@intrinsic
def i64_pointer(typing: Any, address: Any) -> Any:
    """A pointer to int64 from an address, for `numba.carray`."""
    return _pointer(types.int64)


def _pointer(element: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return types.CPointer(element)(types.int64), emit


def _tile(blocks: int, tokens: int, name: str, ahead: int = 0) -> Any:
    """An intrinsic `tile(out, out_stride, x, x_stride, w, block_stride, n, lanes, keep, mode)` of this extent.

    out, x, w: addresses; token t reads x + t * x_stride and writes sixteen f32 a block, from out + t * out_stride on.
    Block b of w starts at w + b * block_stride; n columns are summed. Strides are in bytes. Of the last block only
    `lanes` lanes are written. `keep` 1: the sums go on from what `out` holds; 0: from zero. `ahead`: bytes by which
    the columns of w are asked for before they are summed; 0: the processor is left to guess them.
    """

    def tile(
        typing: Any, out: Any, out_stride: Any, x: Any, x_stride: Any, w: Any, block_stride: Any, n: Any, lanes: Any,
        keep: Any, mode: Any,
    ) -> Any:  # fmt: skip
        integers = [types.int64] * 9

        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            flags = ("contract",) if is_fast(mode) else ()
            kept_apart = f"kvwaybill_{name}_{'fast' if is_fast(mode) else 'strict'}"
            body = function_of(
                builder,
                kept_apart,
                ir.VoidType(),
                [I64] * 9,
                lambda b, a: _emit_tile(b, blocks, tokens, a, flags, ahead),
            )
            builder.call(body, args[:9])
            return context.get_dummy_value()

        return types.none(*integers, mode), emit

    tile.__name__ = tile.__qualname__ = name
    return intrinsic(tile)


def function_of(
    builder: Any, name: str, result: Any, parameters: Sequence[Any], emit: Callable[[Any, Any], Any]
) -> Any:
    """The function `name` of the builder's module, made by `emit(builder, arguments)` where it is not there yet.

    It is never inlined: what is called from many places is then optimised once, which is most of the compile time.
    """
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, parameters), name)
    if function.is_declaration:
        function.linkage = "linkonce_odr"
        function.attributes.add("noinline")
        function.attributes.add("nounwind")
        function.attributes.add("optsize")  # unrolled again at each link, loads end up in an order no cache foresees
        inner = ir.IRBuilder(function.append_basic_block("entry"))
        value = emit(inner, function.args)
        if value is None:
            inner.ret_void()
        else:
            inner.ret(value)
    return function


def _emit_tile(builder: Any, blocks: int, tokens: int, args: Sequence[Any], flags: Sequence[str], ahead: int) -> None:
    out_address, out_stride, x_address, x_stride, w_address, block_stride, n, lanes, keep = args[:9]
    out, x, w = (builder.inttoptr(a, POINTER) for a in (out_address, x_address, w_address))
    xs = [at(builder, x, builder.mul(x_stride, ir.Constant(I64, t))) for t in range(tokens)]
    ws = [at(builder, w, builder.mul(block_stride, ir.Constant(I64, b))) for b in range(blocks)]
    outs = []
    for b in range(blocks):
        for t in range(tokens):
            start = at(builder, out, builder.mul(out_stride, ir.Constant(I64, t)))
            outs.append(at(builder, start, ir.Constant(I64, b * COLUMN_BYTES)))
    mask = lane_mask(builder, lanes)
    partial = [b == blocks - 1 for b in range(blocks) for _ in range(tokens)]
    starts = _kept(builder, outs, partial, mask, keep)
    sums = _emit_columns(builder, xs, ws, n, starts, flags, ahead)
    whole = builder.icmp_signed(">=", lanes, ir.Constant(I64, LANES))
    with builder.if_else(whole) as (then, otherwise):
        with then:
            for value, pointer in zip(sums, outs, strict=True):
                builder.store(value, pointer, align=4)
        with otherwise:
            for value, pointer, last in zip(sums, outs, partial, strict=True):
                if last:
                    masked_store(builder, value, pointer, mask)
                else:
                    builder.store(value, pointer, align=4)


def _ask_for(builder: Any, pointer: Any) -> None:
    """A prefetch of one cache line for reading. It never faults, wherever it points."""
    kind = ir.FunctionType(ir.VoidType(), [POINTER, I32, I32, I32])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    read, near, data = ir.Constant(I32, 0), ir.Constant(I32, 3), ir.Constant(I32, 1)
    builder.call(function, [pointer, read, near, data])


def _kept(builder: Any, outs: Sequence[Any], partial: Sequence[bool], mask: Any, keep: Any) -> list[Any]:
    """What the sums start from: zero, or what `out` holds."""
    before = builder.block
    with builder.if_then(builder.icmp_signed("!=", keep, ir.Constant(I64, 0))):
        loaded = [
            masked_load(builder, p, mask, constant(0.0)) if last else builder.load(p, align=4, typ=VECTOR)
            for p, last in zip(outs, partial, strict=True)
        ]
        inside = builder.block
    starts = []
    for value in loaded:
        phi = builder.phi(VECTOR)
        phi.add_incoming(constant(0.0), before)
        phi.add_incoming(value, inside)
        starts.append(phi)
    return starts


def _emit_columns(
    builder: Any, xs: Sequence[Any], ws: Sequence[Any], n: Any, starts: Sequence[Any], flags: Sequence[str], ahead: int
) -> list[Any]:
    """The loop over j; gives the sums after n columns (n may be 0)."""
    entry = builder.block
    loop, done = builder.append_basic_block("columns"), builder.append_basic_block("columns.done")
    builder.cbranch(builder.icmp_signed(">", n, ir.Constant(I64, 0)), loop, done)
    builder.position_at_end(loop)
    j = builder.phi(I64)
    j.add_incoming(ir.Constant(I64, 0), entry)
    phis = [builder.phi(VECTOR) for _ in starts]
    x_offset = builder.mul(j, ir.Constant(I64, 4))
    w_offset = builder.mul(j, ir.Constant(I64, COLUMN_BYTES))
    values = [splat(builder, builder.load(at(builder, p, x_offset), align=4, typ=F32)) for p in xs]
    sums = []
    for b, pointer in enumerate(ws):
        column = builder.load(at(builder, pointer, w_offset), align=4, typ=VECTOR)
        if ahead:
            _ask_for(builder, at(builder, at(builder, pointer, w_offset), ir.Constant(I64, ahead)))
        for t, value in enumerate(values):
            product = builder.fmul(column, value, flags=flags)
            sums.append(builder.fadd(phis[b * len(xs) + t], product, flags=flags))
    following = builder.add(j, ir.Constant(I64, 1))
    j.add_incoming(following, builder.block)
    for phi, start, total in zip(phis, starts, sums, strict=True):
        phi.add_incoming(start, entry)
        phi.add_incoming(total, builder.block)
    builder.cbranch(builder.icmp_signed("<", following, n), loop, done)
    builder.position_at_end(done)
    results = []
    for start, total in zip(starts, sums, strict=True):
        phi = builder.phi(VECTOR)
        phi.add_incoming(start, entry)
        phi.add_incoming(total, loop)
        results.append(phi)
    return results


_AHEAD = 2048  # many tokens take their time over a column: the processor does not ask early enough by itself

TILE_TOKENS = 12 if binding.get_host_cpu_features().get("avx512f", False) else 6
"""Tokens of the widest tile: as many sums as the vector registers of this processor hold."""

PANEL_COLUMNS = 1024
PANEL_STRIDE = PANEL_COLUMNS * 4 + ALIGNMENT
"""Bytes from one row of a panel to the next: an odd number of cache lines, so that no two rows share their sets."""


@intrinsic
def panel(typing: Any) -> Any:
    """The address of `TILE_TOKENS` rows of `PANEL_COLUMNS` floats on the stack of the calling function."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        with builder.goto_entry_block():  # numba's own helper would fill it with zeros at each call
            room = builder.alloca(ir.ArrayType(F32, TILE_TOKENS * PANEL_STRIDE // 4))
        room.align = ALIGNMENT
        return builder.ptrtoint(room, I64)

    return types.int64(), emit


tile_1x1 = _tile(1, 1, "tile_1x1")
tile_2x1 = _tile(2, 1, "tile_2x1")
tile_4x1 = _tile(4, 1, "tile_4x1")
tile_1x2 = _tile(1, 2, "tile_1x2")
tile_1x4 = _tile(1, 4, "tile_1x4")
tile_1xn = _tile(1, TILE_TOKENS, f"tile_1x{TILE_TOKENS}", _AHEAD)

assert COLUMN_BYTES == ALIGNMENT
