"""Operations on operands of a checkpoint's own types, as launches of the kernels of `executor.cuda.source_stored`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from executor.cuda.kernels import Kernels, Operand

__all__ = ["StoredKernels"]

_THREADS = 256
_WIDEST = 1024
_OPERAND = {"rmsnorm_eps": 2, "bias": 1, "embed": 1, "matmul": 2, "attention": 2, "store": 0}
"""Which array of an operation is of the checkpoint's type; the others are f32."""
_OWN = ("rmsnorm_eps", "bias", "rope_half", "rope_column")


class StoredKernels:
    """Compiled when an operation of a type is first asked for: most runs need none."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._modules: dict[str, Any] = {}

    @staticmethod
    def takes(op: str, arrays: Sequence[Operand]) -> bool:
        """Whether an operation is one of these: by its name, or because an operand is narrow."""
        return op in _OWN or any(array.dtype in ("bf16", "fp16") for array in arrays)

    def run(self, op: str, arrays: Sequence[Operand], scalars: Sequence[int]) -> None:
        """As `Kernels.run`."""
        dtype = arrays[_OPERAND[op]].dtype if op in _OPERAND else "fp32"
        getattr(self, f"_{op}")(dtype, [array.address for array in arrays], [array.shape for array in arrays], scalars)

    def _launch(
        self, name: str, dtype: str, grid: tuple[int, int], block: int, args: Sequence[int], shared: int = 0
    ) -> None:
        kernels = self._kernels
        if dtype not in self._modules:
            from executor.cuda.source_stored import stored_names, stored_source

            self._modules[dtype] = kernels.driver.module(stored_source(dtype), stored_names(dtype))
        module = self._modules[dtype]
        kernels.driver.launch(module, f"stored_{name}_{dtype}", grid, block, shared, args, kernels.stream)

    def _rmsnorm_eps(self, dtype: str, at: Sequence[int], shapes: Sequence[Any], scalars: Sequence[int]) -> None:
        rows, n = shapes[0]
        self._launch("rmsnorm", dtype, (rows, 1), _THREADS if n <= 2048 else _WIDEST, [*at, scalars[0], n])

    def _bias(self, dtype: str, at: Sequence[int], shapes: Sequence[Any], scalars: Sequence[int]) -> None:
        rows, n = shapes[0]
        self._launch("bias", dtype, (-(-n // _THREADS), rows), _THREADS, [*at, n])

    def _rope_half(self, dtype: str, at: Sequence[int], shapes: Sequence[Any], scalars: Sequence[int]) -> None:
        (rows, dim), kv_dim, (pos0, head_dim) = shapes[0], shapes[1][1], scalars
        self._launch("rope", dtype, (-(-dim // 256), rows), 128, [*at, pos0, dim, kv_dim, head_dim])

    def _rope_column(self, dtype: str, at: Sequence[int], shapes: Sequence[Any], scalars: Sequence[int]) -> None:
        positions, half = shapes[0]
        self._launch("column", dtype, (-(-positions // _THREADS), 1), _THREADS, [*at, positions, half, *scalars])

    def _embed(self, dtype: str, at: Sequence[int], shapes: Sequence[Any], scalars: Sequence[int]) -> None:
        (rows, dim), vocab = shapes[0], shapes[1][0]
        self._launch("embed", dtype, (rows, 1), _THREADS, [*at, self._kernels.fault, vocab, dim])

    def _matmul(self, dtype: str, at: Sequence[int], shapes: Sequence[Any], scalars: Sequence[int]) -> None:
        (rows, d), n = shapes[0], shapes[1][1]
        blocks, split = self._kernels.shared_out(-(-d // 2))
        self._launch("matvec", dtype, (blocks, rows), 128, [*at, d, n, split])

    def _attention(self, dtype: str, at: Sequence[int], shapes: Sequence[Any], scalars: Sequence[int]) -> None:
        pos0, *heads = scalars
        warps, shared = self._kernels.attention_room(heads[2])
        self._launch("attention", dtype, (heads[0], shapes[0][0]), 32 * warps, [*at[:4], 0, pos0, *heads], shared)

    def _store(self, dtype: str, at: Sequence[int], shapes: Sequence[Any], scalars: Sequence[int]) -> None:
        count = shapes[0][0] * shapes[0][1]
        self._launch("store", dtype, (-(-count // _THREADS), 1), _THREADS, [*at, count])
