"""One forward call on a CUDA device, written as launches: what a decode graph is captured from, and batched prefill.

Every launch notes the operations of the program text that it contains, in their order, so that what a call reports is
what it launched. Addresses come by name from whoever runs it; whose memory each is was looked up before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from executor.cuda.kernels import Kernels, Operand
from executor.cuda.step import launch_step, room_of_step
from executor.instance import Entry
from fleet.model import Model

__all__ = ["BITS_AFTER", "Memory", "Steps"]

BITS_AFTER = 1
"""Words of the attention scratch, which no kernel here needs: the position of the step, then a word a pass with logits.
"""
_WIDE = 4

Operation = tuple[str, int, str]
"""Of the program text: its name, its layer and the weight that it reads."""


def _attention_operations(layer: int) -> tuple[Operation, ...]:
    products = (("matmul", layer, name) for name in ("wq", "wk", "wv"))
    end = (("rope", layer, ""), ("attention", layer, ""), ("matmul", layer, "wo"), ("add", layer, ""))
    return ("rmsnorm", layer, "rms_att"), *products, *end


def _feed_forward_operations(layer: int) -> tuple[Operation, ...]:
    products = (("matmul", layer, "w1"), ("matmul", layer, "w3"))
    end = (("swiglu", layer, ""), ("matmul", layer, "w2"), ("add", layer, ""))
    return ("rmsnorm", layer, "rms_ffn"), *products, *end


class Memory:
    """Where the buffers of a phase lie: addresses by the names of the orders, asked for once.

    `wide`: bytes of an element of a weight matrix, which a narrow type halves in its place; norms stay f32.
    """

    def __init__(
        self, model: Model, phase: str, address: Callable[[str], int], positions: int, wide: int = _WIDE
    ) -> None:
        self._address, self.wide = address, wide
        self._known: dict[str, int] = {}
        self.model, self.phase, self.positions = model, phase, positions

    def at(self, name: str) -> int:
        """The address of a buffer."""
        if name not in self._known:
            self._known[name] = self._address(name)
        return self._known[name]

    def weight(self, name: str, layer: int, rows: int, columns: int = 1) -> int:
        """The address of one layer of a weight of `rows` by `columns`."""
        wide = _WIDE if name.startswith("rms_") else self.wide
        return self.at(f"weights/{name}") + wide * max(layer, 0) * rows * columns

    def cache(self, tensor: str, layer: int) -> int:
        """The address of one layer of this phase's cache."""
        return self.at(f"kv/{self.phase}/{tensor}") + _WIDE * layer * self.positions * self.model.kv_dim

    @property
    def position(self) -> int:
        """The word that holds the position of the step under way."""
        return self.at("act/att")

    @property
    def bits(self) -> int:
        """The first of the words that take the bits of the largest logits."""
        return self.position + _WIDE * BITS_AFTER


class Steps:
    """Forward calls of one model on the memory of one phase. `entries` are those of the call written last."""

    def __init__(self, kernels: Kernels, memory: Memory) -> None:
        self.kernels, self.memory, self.model = kernels, memory, memory.model
        self.entries: list[Entry] = []

    def tables(self) -> None:
        """The RoPE tables of the device."""
        half, positions = self.model.head_dim // 2, self.memory.positions
        tables = [Operand(self.memory.at(f"work/rope_{name}"), (positions, half)) for name in ("cos", "sin")]
        self.kernels.run("rope_table", tables, (self.model.head_dim,))

    # One token, its position in memory

    def token(self, source: int, wants_logits: bool, first: int) -> None:
        """One token, whose id lies at `source`, at the position in memory; `first`: of the first bits word.

        In one launch where card and model allow it (`room_of_step`), otherwise in five a layer.
        """
        self.entries = []
        room = room_of_step(self.kernels, self.memory) if self.kernels.whole else None
        if room is None:
            self._token_in_parts(source, wants_logits, first)
            return
        launch_step(self.kernels, self.memory, source, first, wants_logits, room)
        self._note(("embed", -1, "token_embedding"))
        for layer in range(self.model.n_layers):
            self._note(*_attention_operations(layer), *_feed_forward_operations(layer))
        if wants_logits:
            self._note(*self._ending)

    def _token_in_parts(self, source: int, wants_logits: bool, first: int) -> None:
        self._embed(source, 1)
        for layer in range(self.model.n_layers):
            self._attention_half(layer)
            self._feed_forward_half(layer)
        if not wants_logits:
            self.kernels.launch("advance", (1, 1), 1, [self.memory.position])
            return
        self._classify(self.memory.at("act/x"), first)

    @property
    def _ending(self) -> tuple[Operation, ...]:
        return ("rmsnorm", -1, "rms_final"), ("matmul", -1, self.model.classifier_name), ("argmax", -1, "")

    def _classify(self, row: int, first: int) -> None:
        """Logits of the residual at `row`, the chosen id and the bits of its logit; `first`: as of `token`."""
        model, memory = self.model, self.memory
        size = (model.vocab_size, model.dim)
        args = [memory.at("act/logits"), row, memory.weight("rms_final", -1, model.dim)]
        args += [memory.weight(model.classifier_name, -1, 0), *size]
        self.kernels.units(self.kernels.named("decode_logits"), -(-size[0] // 2), args)
        self._note(*self._ending)
        out = [memory.at("act/next"), memory.at("act/logits"), memory.bits, memory.position]
        self.kernels.launch("argmax", (1, 1), 1024, [*out, first, size[0]])

    def _attention_half(self, layer: int) -> None:
        model, memory = self.model, self.memory
        dim, kv_dim, head_dim = model.dim, model.kv_dim, model.head_dim
        caches = [memory.cache(tensor, layer) for tensor in ("k", "v")]
        weights = [
            memory.weight(name, layer, rows, dim) for name, rows in (("wq", dim), ("wk", kv_dim), ("wv", kv_dim))
        ]
        args = [memory.at("act/q"), *caches, memory.at("act/x"), memory.weight("rms_att", layer, dim), *weights]
        args += [memory.at("work/rope_cos"), memory.at("work/rope_sin"), memory.position, dim, kv_dim, head_dim]
        self.kernels.units(self.kernels.named("decode_qkv"), dim // 2 + kv_dim, args)
        heads = (model.n_heads, model.n_kv_heads, head_dim)
        self.kernels.attend([memory.at("act/xb"), memory.at("act/q"), *caches], memory.position, 0, 1, heads)
        args = [memory.at("act/x"), memory.at("act/xb"), memory.weight("wo", layer, dim, dim), dim, dim]
        self.kernels.units(self.kernels.named("decode_add"), -(-dim // 2), args)
        self._note(*_attention_operations(layer))

    def _feed_forward_half(self, layer: int) -> None:
        model, memory = self.model, self.memory
        dim, hidden = model.dim, model.hidden_dim
        weights = [memory.weight(name, layer, hidden, dim) for name in ("w1", "w3")]
        args = [memory.at("act/hb"), memory.at("act/x"), memory.weight("rms_ffn", layer, dim), *weights, hidden, dim]
        self.kernels.units(self.kernels.named("decode_ffn"), hidden, args)
        args = [memory.at("act/x"), memory.at("act/hb"), memory.weight("w2", layer, dim, hidden), dim, hidden]
        self.kernels.units(self.kernels.named("decode_add"), -(-dim // 2), args)
        self._note(*_feed_forward_operations(layer))

    def _embed(self, source: int, rows: int) -> None:
        model, memory = self.model, self.memory
        table = Operand(memory.at("weights/token_embedding"), (model.vocab_size, model.dim))
        self.kernels.run("embed", [Operand(memory.at("act/x"), (rows, model.dim)), table, Operand(source, (rows,))], ())
        self._note(("embed", -1, "token_embedding"))

    # Many tokens at once

    def batch(self, source: int, rows: int, position: int, wants_logits: bool) -> None:
        """`rows` tokens, whose ids lie at `source`, from `position` on; logits of the last where they are wanted."""
        model = self.model
        self.entries = []
        self._embed(source, rows)
        for layer in range(model.n_layers):
            self._batch_attention(layer, rows, position)
            self._batch_feed_forward(layer, rows)
        if wants_logits:
            self._batch_logits(rows, position)

    def _batch_logits(self, rows: int, position: int) -> None:
        model = self.model
        last = Operand(self.memory.at("act/x") + _WIDE * (rows - 1) * model.dim, (1, model.dim))
        logits = Operand(self.memory.at("act/logits"), (1, model.vocab_size))
        self._op("rmsnorm", -1, "rms_final", last, last, self._weight("rms_final", -1, model.dim))
        classifier = Operand(self.memory.at(f"weights/{model.classifier_name}"), (model.vocab_size, model.dim))
        self._op("matmul", -1, model.classifier_name, logits, last, classifier)
        self._note(("argmax", -1, ""))
        out = [self.memory.at("act/next"), logits.address, self.memory.bits, self.memory.position]
        self.kernels.launch("argmax", (1, 1), 1024, [*out, position + rows - 1, model.vocab_size])

    def _row(self, name: str, rows: int, width: int) -> Operand:
        return Operand(self.memory.at(f"act/{name}"), (rows, width))

    def _weight(self, name: str, layer: int, rows: int, columns: int = 0) -> Operand:
        shape = (rows, columns) if columns else (rows,)
        return Operand(self.memory.weight(name, layer, rows, columns or 1), shape)

    def _op(self, op: str, layer: int, tensor: str, *operands: Operand, scalars: Sequence[int] = ()) -> None:
        self.kernels.run(op, operands, scalars)
        self._note((op, layer, tensor))

    def _batch_attention(self, layer: int, rows: int, position: int) -> None:
        model, memory = self.model, self.memory
        dim, kv_dim, head_dim = model.dim, model.kv_dim, model.head_dim
        x, xb, xb2, q = (self._row(name, rows, dim) for name in ("x", "xb", "xb2", "q"))
        whole = [Operand(memory.cache(tensor, layer), (memory.positions, kv_dim)) for tensor in ("k", "v")]
        k, v = (Operand(cache.address + _WIDE * position * kv_dim, (rows, kv_dim)) for cache in whole)
        self._op("rmsnorm", layer, "rms_att", xb, x, self._weight("rms_att", layer, dim))
        for name, out, width in (("wq", q, dim), ("wk", k, kv_dim), ("wv", v, kv_dim)):
            self._op("matmul", layer, name, out, xb, self._weight(name, layer, width, dim))
        tables = [Operand(memory.at(f"work/rope_{name}"), (memory.positions, head_dim // 2)) for name in ("cos", "sin")]
        self._op("rope", layer, "", q, k, *tables, scalars=(position, head_dim))
        scratch = Operand(memory.at("act/att"), (model.n_heads, memory.positions))
        heads = (position, model.n_heads, model.n_kv_heads, head_dim)
        self._op("attention", layer, "", xb, q, *whole, scratch, scalars=heads)
        self._project("wo", layer, x, xb, xb2, self._weight("wo", layer, dim, dim))

    def _batch_feed_forward(self, layer: int, rows: int) -> None:
        model = self.model
        dim, hidden = model.dim, model.hidden_dim
        x, xb, xb2 = (self._row(name, rows, dim) for name in ("x", "xb", "xb2"))
        hb, hb2 = (self._row(name, rows, hidden) for name in ("hb", "hb2"))
        self._op("rmsnorm", layer, "rms_ffn", xb, x, self._weight("rms_ffn", layer, dim))
        for name, out in (("w1", hb), ("w3", hb2)):
            self._op("matmul", layer, name, out, xb, self._weight(name, layer, hidden, dim))
        self._op("swiglu", layer, "", hb, hb2)
        self._project("w2", layer, x, hb, xb2, self._weight("w2", layer, dim, hidden))

    def _project(self, name: str, layer: int, x: Operand, given: Operand, beside: Operand, weight: Operand) -> None:
        """A product added to the residual: by the library in one call, which adds what it has summed up."""
        if self.kernels.by_library(given.shape[0], *weight.shape):
            self.kernels.add_product(x, given, weight)
        else:
            self.kernels.run("matmul", [beside, given, weight], ())
            self.kernels.run("add", [x, beside], ())
        self._note(("matmul", layer, name), ("add", layer, ""))

    # What was launched, in the words of the program text

    def _note(self, *operations: Operation) -> None:
        self.entries += [(op, layer, tensor, self._shape(op, tensor)) for op, layer, tensor in operations]

    def _shape(self, op: str, tensor: str) -> tuple[int, ...]:
        """The shape that the program text gives an operation, less its token count."""
        model = self.model
        if tensor:
            return self._shapes[tensor]
        if op in ("rope", "attention"):
            return (model.dim, model.kv_dim)
        return {"add": (model.dim,), "swiglu": (model.hidden_dim,), "argmax": (model.vocab_size,)}[op]

    @property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        from executor.machine import LAYERED

        return {spec.name: spec.shape[1:] if spec.name in LAYERED else spec.shape for spec in self.model.tensors}
