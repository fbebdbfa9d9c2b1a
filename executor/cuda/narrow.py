"""Weights in bf16 or fp16 on a card: narrowed in their own memory once they are staged, and forward calls on them.

What crosses an edge stays the checkpoint's f32, and no byte more is resident: an element takes the first half of the
room that it had. K, V, the residual and every sum stay f32; of prefill the inputs of the products are narrow too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from executor.cuda.kernels import Kernels, Operand
from executor.cuda.steps import Memory, Steps
from fleet.errors import InconclusiveError
from fleet.model import Model

__all__ = ["NarrowSteps", "narrow_weights"]

_FIRST = 1024
"""Elements that one block narrows at once: those whose own memory they are written to."""
_THREADS = 256


def narrow_weights(
    kernels: Kernels, model: Model, memory: Memory, device: str, words: Callable[[int, int], Any]
) -> None:
    """Make every weight matrix of a device narrow where it lies. InconclusiveError where a finite value does not fit.

    Twice as many elements a launch: each writes to where the launch before it has read.
    """
    kernels.driver.fill(kernels.looked, 0, 2, kernels.stream)
    name = kernels.named("narrow_in_place")
    for spec in model.tensors:
        if spec.role == "unread" or spec.name.startswith("rms_"):
            continue
        at, count, first, last = memory.at(f"weights/{spec.name}"), spec.n_elements, 0, min(_FIRST, spec.n_elements)
        while first < last:
            blocks = -(-(last - first) // (_FIRST if first == 0 else _THREADS))
            kernels.launch(name, (blocks, 1), _FIRST if first == 0 else _THREADS, [at, kernels.looked, first, last])
            first, last = last, min(2 * last, count)
    low, high = (int(word) for word in words(kernels.looked, 2))
    if lost := low | high << 32:
        raise InconclusiveError(
            f"{device}: {lost:,} weights are finite in fp32 and not in {kernels.dtype}: nothing was computed; "
            "run with another --compute-dtype"
        )


class NarrowSteps(Steps):
    """Forward calls on narrow weights; a token's own differ in the names of kernels alone."""

    def _embed(self, source: int, rows: int) -> None:
        model, memory, kernels = self.model, self.memory, self.kernels
        args = [memory.at("act/x"), memory.at("weights/token_embedding"), source, kernels.fault]
        kernels.launch(kernels.named("embed"), (rows, 1), _THREADS, [*args, model.vocab_size, model.dim])
        self._note(("embed", -1, "token_embedding"))

    def _batch_logits(self, rows: int, position: int) -> None:
        self._classify(self.memory.at("act/x") + 4 * (rows - 1) * self.model.dim, position + rows - 1)

    def _batch_attention(self, layer: int, rows: int, position: int) -> None:
        model, memory, kernels = self.model, self.memory, self.kernels
        dim, kv_dim, head_dim = model.dim, model.kv_dim, model.head_dim
        caches = [Operand(memory.cache(tensor, layer), (memory.positions, kv_dim)) for tensor in ("k", "v")]
        k, v = (Operand(cache.address + 4 * position * kv_dim, (rows, kv_dim)) for cache in caches)
        xb2, q = (self._row(name, rows, dim) for name in ("xb2", "q"))
        self._normed("rms_att", layer, rows)
        for name, out in (("wq", q), ("wk", k), ("wv", v)):
            self._product(name, layer, out.address, memory.at("act/xb"), rows, out.shape[1], dim)
        tables = [Operand(memory.at(f"work/rope_{name}"), (memory.positions, head_dim // 2)) for name in ("cos", "sin")]
        self._op("rope", layer, "", q, k, *tables, scalars=(position, head_dim))
        heads = (model.n_heads, model.n_kv_heads, head_dim)
        kernels.attend([xb2.address, q.address, *(cache.address for cache in caches)], 0, position, rows, heads)
        self._note(("attention", layer, ""))
        self._elements("narrow", memory.at("act/xb"), xb2.address, rows * dim)
        self._product("wo", layer, memory.at("act/x"), memory.at("act/xb"), rows, dim, dim, add=True)
        self._note(("add", layer, ""))

    def _batch_feed_forward(self, layer: int, rows: int) -> None:
        model, memory = self.model, self.memory
        hb, hb2, xb = (memory.at(f"act/{name}") for name in ("hb", "hb2", "xb"))
        self._normed("rms_ffn", layer, rows)
        for name, out in (("w1", hb), ("w3", hb2)):
            self._product(name, layer, out, xb, rows, model.hidden_dim, model.dim, narrow_out=True)
        self._elements("swiglu", hb, hb2, rows * model.hidden_dim)
        self._note(("swiglu", layer, ""))
        self._product("w2", layer, memory.at("act/x"), hb, rows, model.dim, model.hidden_dim, add=True)
        self._note(("add", layer, ""))

    def _normed(self, name: str, layer: int, rows: int) -> None:
        """The residual's norm into the first half of act/xb."""
        dim, memory = self.model.dim, self.memory
        args = [memory.at("act/xb"), memory.at("act/x"), memory.weight(name, layer, dim)]
        threads = _THREADS if dim <= 2048 else 1024
        self.kernels.launch(self.kernels.named("rmsnorm"), (rows, 1), threads, [*args, dim])
        self._note(("rmsnorm", layer, name))

    def _product(
        self, name: str, layer: int, out: int, x: int, rows: int, d: int, n: int, *, narrow_out: bool = False,
        add: bool = False,
    ) -> None:  # fmt: skip
        kernels = self.kernels
        weight = self.memory.weight(name, layer, d, n)
        kernels.driver.gemm_narrow(
            kernels.blas(), out, x, weight, rows, d, n, kernels.stream, dtype=kernels.dtype, narrow_out=narrow_out,
            add=add,
        )  # fmt: skip
        self._note(("matmul", layer, name))

    def _elements(self, kernel: str, out: int, x: int, count: int) -> None:
        self.kernels.launch(self.kernels.named(kernel), (-(-count // _THREADS), 1), _THREADS, [out, x, count])
