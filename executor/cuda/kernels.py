"""The operations of `executor.ops` as launches of the kernels of `executor.cuda.source`: which, on what grid.

Pointers and extents in, launches out; that they fit was checked by the ABI. Nothing here allocates or copies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from executor.cuda.driver import Driver
from executor.cuda.parameters_stored import STORED
from executor.cuda.step import STEP_PARAMETERS
from executor.cuda.stored import StoredKernels

__all__ = ["LARGEST_HEAD", "NARROWED", "PARAMETERS", "Kernels", "Operand", "parameters_of", "signed_word"]

Shape = tuple[int, ...]

PARAMETERS: dict[str, str] = {
    "embed": "ppppii",
    "rmsnorm": "pppi",
    "matvec": "pppiii",
    "matmul": "pppiii",
    "rope": "pppppiiii",
    "attention": "pppppiiii",
    "add": "ppq",
    "swiglu": "ppq",
    "argmax": "ppppii",
    "rope_table": "ppiii",
    "advance": "p",
    "decode_qkv": "pppppppppppiiii",
    "decode_add": "pppiii",
    "decode_ffn": "pppppiii",
    "decode_logits": "ppppiii",
    "decode_step": STEP_PARAMETERS,
    "digest": "ppqq",
    "count_other": "ppqqi",
    "attention_tile": "ppppiiiii",
}
"""Parameters of each kernel: p an address, i an int32, q an int64."""

NARROWED: dict[str, str] = {
    "embed": PARAMETERS["embed"],
    **{name: kinds for name, kinds in PARAMETERS.items() if name.startswith("decode_")},
    "rmsnorm": "pppi",
    "swiglu": "ppq",
    "narrow": "ppq",
    "narrow_in_place": "ppqq",
}
"""Kernels that there are of each narrow type too, under these names and `_bf16` or `_fp16`."""

LARGEST_HEAD = 256
"""head_dim that the attention kernel holds in registers: 8 values a lane."""

_SPLIT_BELOW = 12288
"""Pairs of rows below which a block shares the columns of each pair: fewer warps than that leave a card waiting."""

_ROW_THREADS = 256
_WARPS = 4
_ATTENTION_WARPS = 16
_TILE_ROWS = 64
"""Tokens from which a call's attention goes in tiles, which read each key once for 64 of them."""
_TILE_HEAD = 128
_LIBRARY_FROM = 1 << 26
"""Multiplications from which a call goes to cuBLAS; below it, starting the library costs more than it saves."""


def parameters_of(kernel: str) -> str:
    """The kinds of a kernel's parameters, also of one for a narrow type."""
    plain, _, dtype = kernel.rpartition("_")
    if kernel.startswith("stored_"):
        return STORED[plain]
    return NARROWED[plain] if dtype in ("bf16", "fp16") else PARAMETERS[kernel]


def signed_word(word: int) -> int:
    """A 32-bit word as the int32 that a kernel is handed."""
    return word - (1 << 32) if word >> 31 else word


@dataclass(frozen=True, slots=True)
class Operand:
    """An array of a call: where it lies, its shape and type."""

    address: int
    shape: Shape
    dtype: str = "fp32"


class Kernels:
    """The kernels of one device, launched on its stream. `blas` gives its cuBLAS handle, made on first use.

    `fault` is the address of three int32 of pinned memory: [set, index, token id] of a token outside the table.
    `dtype`: in which the weight matrices lie when compiled calls read them (`fp32`, `bf16`, `fp16`). `whole`: a decode
    step goes in one launch where the card and the model allow it.
    """

    whole: bool = True

    def __init__(
        self, driver: Driver, module: Any, stream: int, fault: int, blas: Callable[[], Any], dtype: str = "fp32"
    ) -> None:
        self.driver, self.module, self.stream, self.fault, self.blas = driver, module, stream, fault, blas
        self.dtype = dtype
        self.stored = StoredKernels(self)

    @property
    def looked(self) -> int:
        """The address of what the witnesses' kernels found, in the module's own memory."""
        return int(self.module["looked"])

    def named(self, kernel: str) -> str:
        """The kernel of this name for the type that the weights lie in."""
        return kernel if self.dtype == "fp32" else f"{kernel}_{self.dtype}"

    def launch(
        self, name: str, grid: tuple[int, int], block: int, args: Sequence[int], shared: int = 0, together: bool = False
    ) -> None:
        """One kernel, by name; `together`: all of its blocks have to run at once."""
        self.driver.launch(self.module, name, grid, block, shared, args, self.stream, together)

    def units(self, name: str, count: int, args: Sequence[int]) -> None:
        """A kernel over `count` pairs of rows: a warp each, or a block each where that fills the card better."""
        blocks, split = self.shared_out(count)
        self.launch(name, (blocks, 1), 32 * _WARPS, [*args, split])

    def shared_out(self, count: int) -> tuple[int, int]:
        """(blocks of four warps, whether a block shares each pair's columns) for `count` pairs of rows."""
        split = count < _SPLIT_BELOW
        return count if split else -(-count // _WARPS), int(split)

    def run(self, op: str, arrays: Sequence[Operand], scalars: Sequence[int]) -> None:
        """An operation of `executor.ops`: the output first, scalars in the order of its table.

        Raises NotImplementedError for a head larger than LARGEST_HEAD: so a hook declines, and the device words it.
        """
        if self.stored.takes(op, arrays):
            self.stored.run(op, arrays, scalars)
            return
        getattr(self, f"_{op}")([array.address for array in arrays], [array.shape for array in arrays], scalars)

    def _embed(self, at: Sequence[int], shapes: Sequence[Shape], scalars: Sequence[int]) -> None:
        (rows, dim), vocab = shapes[0], shapes[1][0]
        self.launch("embed", (rows, 1), _ROW_THREADS, [*at, self.fault, vocab, dim])

    def _rmsnorm(self, at: Sequence[int], shapes: Sequence[Shape], scalars: Sequence[int]) -> None:
        rows, n = shapes[0]
        self.launch("rmsnorm", (rows, 1), _ROW_THREADS if n <= 2048 else 1024, [*at, n])

    def _matmul(self, at: Sequence[int], shapes: Sequence[Shape], scalars: Sequence[int]) -> None:
        (rows, d), n = shapes[0], shapes[1][1]
        if rows == 1:
            self.units("matvec", -(-d // 2), [*at, d, n])
        elif self.by_library(rows, d, n):
            self.driver.sgemm(self.blas(), at[0], at[1], at[2], rows, d, n, self.stream)
        else:
            self.launch("matmul", (-(-d // 64), -(-rows // 64)), 256, [*at, rows, d, n])

    def by_library(self, rows: int, d: int, n: int) -> bool:
        """Whether a product of these extents goes to cuBLAS."""
        return rows > 1 and rows * d * n >= _LIBRARY_FROM

    def add_product(self, out: Operand, x: Operand, w: Operand) -> None:
        """out += x times w transposed, by cuBLAS."""
        (rows, n), d = x.shape, w.shape[0]
        self.driver.sgemm(self.blas(), out.address, x.address, w.address, rows, d, n, self.stream, add=True)

    def _rope(self, at: Sequence[int], shapes: Sequence[Shape], scalars: Sequence[int]) -> None:
        (rows, dim), kv_dim, (pos0, head_dim) = shapes[0], shapes[1][1], scalars
        self.launch("rope", (-(-dim // 256), rows), 128, [*at, 0, pos0, dim, kv_dim, head_dim])

    def _attention(self, at: Sequence[int], shapes: Sequence[Shape], scalars: Sequence[int]) -> None:
        pos0, n_heads, n_kv_heads, head_dim = scalars
        self.attend(at[:4], 0, pos0, shapes[0][0], (n_heads, n_kv_heads, head_dim))

    def attend(self, at: Sequence[int], pos: int, pos0: int, rows: int, heads: tuple[int, int, int]) -> None:
        """Attention of `rows` tokens from position `pos0` on, or from the one at address `pos`."""
        head_dim = heads[2]
        warps, shared = self.attention_room(head_dim)
        if rows >= _TILE_ROWS and head_dim <= _TILE_HEAD and not pos:
            self.launch("attention_tile", (heads[0], -(-rows // _TILE_ROWS)), 256, [*at, rows, pos0, *heads])
            return
        self.launch("attention", (heads[0], rows), 32 * warps, [*at, pos, pos0, *heads], shared)

    def attention_room(self, head_dim: int) -> tuple[int, int]:
        """(warps, bytes of shared memory) of a block of attention."""
        if head_dim > LARGEST_HEAD:
            # A hook declines so; the device words it as a fault of the run, and no other device does the work.
            raise NotImplementedError(f"heads of {head_dim}; the kernel holds up to {LARGEST_HEAD}")
        return _ATTENTION_WARPS, 4 * _ATTENTION_WARPS * (2 + head_dim)

    def _add(self, at: Sequence[int], shapes: Sequence[Shape], scalars: Sequence[int]) -> None:
        self._elementwise("add", at, shapes[0])

    def _swiglu(self, at: Sequence[int], shapes: Sequence[Shape], scalars: Sequence[int]) -> None:
        self._elementwise("swiglu", at, shapes[0])

    def _elementwise(self, name: str, at: Sequence[int], shape: Shape) -> None:
        count = shape[0] * shape[1]
        self.launch(name, (-(-count // 256), 1), 256, [*at, count])

    def _argmax(self, at: Sequence[int], shapes: Sequence[Shape], scalars: Sequence[int]) -> None:
        self.launch("argmax", (1, 1), 1024, [*at, 0, 0, 0, shapes[1][0]])

    def _rope_table(self, at: Sequence[int], shapes: Sequence[Shape], scalars: Sequence[int]) -> None:
        positions, half = shapes[0]
        self.launch("rope_table", (-(-positions * half // 256), 1), 256, [*at, positions, half, scalars[0]])
