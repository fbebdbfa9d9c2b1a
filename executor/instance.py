"""The program text's two ways to compute: everything on the device, or only the matmuls there (attention on the host).

An instance belongs to one phase. It names the device, hands out rows, labels each operation and notes the sequence that
was really called. Known limits: f32, batch 1; with attention on the host, one token a call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from executor.device import Buffer
from executor.events import Label
from executor.machine import Machine
from executor.naming import LAYERED, OPTIONAL, expected_tensors
from executor.rotation import frequencies
from executor.transformer import Cache, Rows, Tensor, WeightSet
from executor.weights import Weights
from fleet.model import Model

Phase = Literal["prefill", "decode"]
Entry = tuple[str, int, str, tuple[int, ...]]
"""(op, layer, tensor, shape less the token count) of one operation of the program text."""

Program = Callable[..., None]
"""A function body with the signature of `executor.transformer.transformer`."""

Dispatch = Callable[..., None]
"""(device, op, out, *operands, label=, **scalars), as `Backend.dispatch`."""

F32 = npt.NDArray[np.float32]


class BaseInstance:
    """What both ways share: dimensions, the operations and the sequence in which they were called, the sampled id.

    `entries` is the sequence of the current forward call; `top1_bits` the bits of the largest logit of the last call
    that computed logits; `sampled` its index, the first on a tie, or what was drawn from them.
    """

    weights: WeightSet
    _next: Any
    _logits: Any
    _logits_row: Any
    _scratch: Any
    _tables: tuple[Any, Any]
    _unstored: list[tuple[Any, Any]]

    def __init__(self, machine: Machine, phase: Phase, order: int, dispatch: Dispatch) -> None:
        self.machine = machine
        self.model = machine.model
        self.phase: Phase = phase
        self.order = order
        self.device = machine.device_of(phase)
        self.n_layers = self.model.n_layers
        self.wants_logits = False
        self.entries: list[Entry] = []
        self.top1_bits = 0
        self.sampled = -1
        self._dispatch = dispatch
        recipe = self.model.recipe
        self._eps = None if recipe is None else {"eps_bits": _bits(recipe.norm_eps)}
        self._head = {"head_dim": self.model.head_dim}
        self._heads = self._head | {"n_heads": self.model.n_heads, "n_kv_heads": self.model.n_kv_heads}
        self._begin(-1, 1, False)

    def forward(self, program: Program, kv: Cache, ids: Sequence[int], position: int, wants_logits: bool) -> int | None:
        """One forward call of len(ids) tokens from `position` on; gives the sampled id where logits are wanted."""
        raise NotImplementedError  # abstract: both ways to compute bring their own

    def _begin(self, position: int, n_tokens: int, wants_logits: bool) -> None:
        self.entries = []
        self.wants_logits = wants_logits
        self._position, self._n_tokens = position, n_tokens
        self._label = self._label_of("")

    def _label_of(self, tensor: str, layer: int = -1) -> Label:
        return Label(self.phase, self.order, tensor, layer, self._position, self._n_tokens, self._position)

    def _compute(self, op: str, out: Any, *operands: Any, **scalars: int) -> None:
        """Any operation but a matmul, where this mode does it."""
        raise NotImplementedError  # abstract: both ways to compute bring their own

    def _beside(self, weight: Tensor) -> Any:
        """The tensor where `_compute` reads it."""
        return weight.data

    def embed(self, x: Any, table: Tensor, tokens: Any) -> None:
        self.entries.append(("embed", -1, table.name, table.shape))
        self._compute("embed", x, self._beside(table), tokens)

    def rmsnorm(self, out: Any, x: Any, weight: Tensor) -> None:
        self.entries.append(("rmsnorm", weight.layer, weight.name, weight.shape))
        if self._eps is None:
            self._compute("rmsnorm", out, x, self._beside(weight))
        else:
            self._compute("rmsnorm_eps", out, x, self._beside(weight), **self._eps)

    def bias(self, rows: Any, weight: Tensor | None) -> None:
        if weight is not None:
            self.entries.append(("bias", weight.layer, weight.name, weight.shape))
            self._compute("bias", rows, self._beside(weight))

    def head_norm(self, rows: Any, weight: Tensor | None) -> None:
        """The norm of each head of `rows` by itself."""
        if weight is not None:
            heads = rows.reshape(rows.shape[0] * (rows.shape[1] // weight.shape[0]), weight.shape[0])
            self.rmsnorm(heads, heads, weight)

    def rope(self, q: Any, k: Any, layer: int, position: int) -> None:
        self.entries.append(("rope", layer, "", (q.shape[-1], k.shape[-1])))
        self._compute("rope" if self._eps is None else "rope_half", q, k, *self._tables, pos0=position, **self._head)

    def _fill_tables(self) -> None:
        """Angles of every position: by llama2.c's rule, or a column a pair by the recipe's frequencies."""
        recipe = self.model.recipe
        if recipe is None:
            self._compute("rope_table", *self._tables, **self._head)
            return
        scale = _bits(recipe.rope.attention)
        for column, one in enumerate(frequencies(recipe.rope, self.model.head_dim)):
            self._compute("rope_column", *self._tables, column=column, frequency_bits=_bits(one), scale_bits=scale)

    def attention(self, out: Any, q: Any, k: Any, v: Any, layer: int, position: int) -> None:
        self.entries.append(("attention", layer, "", (q.shape[-1], k.shape[-1])))
        self._compute("attention", out, q, k, v, self._scratch, pos0=position, **self._heads)

    def add(self, x: Any, y: Any, layer: int) -> None:
        self.entries.append(("add", layer, "", x.shape[1:]))
        self._compute("add", x, y)

    def _store(self) -> None:
        """What was computed beside a cache goes to its positions."""
        for place, rows in self._unstored:
            self._compute("store", place, rows)
        self._unstored.clear()

    def swiglu(self, h1: Any, h3: Any, layer: int) -> None:
        self.entries.append(("swiglu", layer, "", h1.shape[1:]))
        self._compute("swiglu", h1, h3)

    def logits(self) -> Any:
        return self._logits

    def argmax(self, logits: Any) -> None:
        self.entries.append(("argmax", -1, "", logits.shape[1:]))
        self._compute("argmax", self._next, self._logits_row)


class DeviceInstance(BaseInstance):
    """attention: device. Every row lies in the device's arena; only token ids cross."""

    def __init__(self, machine: Machine, phase: Phase, order: int, dispatch: Dispatch) -> None:
        super().__init__(machine, phase, order, dispatch)
        self.weights = _weight_set(machine, lambda name: self._buffer(f"weights/{name}"), _layer_of_buffer)
        self._tokens = self._buffer("act/tokens")
        self._next = self._buffer("act/next")
        self._logits = self._buffer("act/logits").reshape(1, self.model.vocab_size)
        self._logits_row = self._logits.at(0)
        self._scratch = self._buffer("act/att")
        self._tables = (self._buffer("work/rope_cos"), self._buffer("work/rope_sin"))
        self._rows: dict[int, Rows] = {}
        self._next_on_device = False
        self._unstored = []
        self._fill_tables()

    def _buffer(self, name: str) -> Buffer:
        return self.machine.buffer(self.device, name)

    def forward(self, program: Program, kv: Cache, ids: Sequence[int], position: int, wants_logits: bool) -> int | None:
        """See the base class. The ids go up unless they are the one that this phase chose last on the device; where the
        host draws, the logits come down in place of that id.
        """
        self._begin(position, len(ids), wants_logits)
        tokens = self._next if self._next_on_device else self._upload(ids)
        program(self, self.weights, kv, tokens, position)
        if not wants_logits:
            return None
        if (sampler := self.machine.sampler) is not None:
            self.machine.backend.copy_d2h(self.device, self._logits_row, sampler.logits, self._label_of("logits"))
            self.sampled, self.top1_bits = sampler.choose()
            return self.sampled
        sampled = np.empty(1, np.int32)
        self.machine.backend.copy_d2h(self.device, self._next, sampled, self._label_of("next_token"))
        self._next_on_device = True
        self.sampled = int(sampled[0])
        self.top1_bits = self._logits_row.word(self.sampled)
        return self.sampled

    def _upload(self, ids: Sequence[int]) -> Buffer:
        tokens = self._tokens.view(0, len(ids))
        self.machine.backend.copy_h2d(self.device, np.array(ids, np.int32), tokens, self._label_of("tokens"))
        return tokens

    def rows(self) -> Rows:
        n_tokens = self._n_tokens
        if n_tokens not in self._rows:
            widths = _widths(self.model)
            of = {name: self._buffer(f"act/{name}").reshape(n_tokens, width) for name, width in widths.items()}
            self._rows[n_tokens] = Rows(att=self._buffer("act/xb").reshape(n_tokens, self.model.q_dim), **of)
        return self._rows[n_tokens]

    def at(self, cache: Buffer, position: int) -> Buffer:
        """Rows of the cache at their positions; of a packed or narrow one, f32 rows that `attention` stores there.

        Narrow caches have no rows of their own in the plan: what the feed-forward part needs later is free meanwhile.
        """
        place = cache.view(position, self._n_tokens)
        if cache.packing is None and cache.dtype == "fp32":
            return place
        name = cache.packing.kind if cache.packing is not None else ("hb", "hb2")[len(self._unstored)]
        rows = self._buffer(f"act/{name}").reshape(*place.shape)
        self._unstored.append((place, rows))
        return rows

    def attention(self, out: Any, q: Any, k: Any, v: Any, layer: int, position: int) -> None:
        self._store()
        super().attention(out, q, k, v, layer, position)

    def last(self, x: Buffer) -> Buffer:
        return x.view(self._n_tokens - 1, 1)

    def matmul(self, out: Buffer, x: Buffer, weight: Tensor) -> None:
        self.entries.append(("matmul", weight.layer, weight.name, weight.shape))
        label = self._label_of(weight.name, weight.layer)
        self._dispatch(self.device, "matmul", out, x, weight.data, label=label)

    def _compute(self, op: str, out: Any, *operands: Any, **scalars: int) -> None:
        self._dispatch(self.device, op, out, *operands, label=self._label, **scalars)


class HostInstance(BaseInstance):
    """attention: host. Host arrays throughout; a matmul stages its input up and its output down around the dispatch.

    Token by token, logits at every position. A weight's data is (buffer on the device or None, host array).
    """

    def __init__(self, machine: Machine, phase: Phase, order: int, dispatch: Dispatch, source: Weights) -> None:
        super().__init__(machine, phase, order, dispatch)
        from executor.kernels import run_op

        self._compute = run_op  # type: ignore[method-assign]  # one call less in the hot path
        self.weights = _weight_set(machine, lambda name: self._both_places(name, source), _layer_of_both)
        self._act = {name: machine.buffer(self.device, f"act/{name}") for name in ("in", "out")}
        self._staging: dict[tuple[str, int], Buffer] = {}
        widths = _widths(self.model) | {"att": self.model.q_dim}
        self._rows = Rows(**{name: np.zeros((1, width), np.float32) for name, width in widths.items()})
        self._logits = np.zeros((1, self.model.vocab_size), np.float32)
        self._logits_row = self._logits[0]
        self._next = np.zeros(1, np.int32)
        positions = machine.cache(f"host:{phase}", phase, "k").shape[1]
        self._scratch = np.zeros((self.model.n_heads, positions), np.float32)
        table = (machine.orders.workload.positions, self.model.head_dim // 2)
        self._tables = (np.zeros(table, np.float32), np.zeros(table, np.float32))
        self._unstored = []
        self._kv_rows = [np.zeros((1, self.model.kv_dim), np.float32) for _ in ("k", "v")]
        self._fill_tables()

    def _both_places(self, name: str, source: Weights) -> tuple[Buffer | None, Any]:
        return self.machine.buffers[self.device].get(f"weights/{name}"), source.tensor(name)

    def _beside(self, weight: Tensor) -> Any:
        return weight.data[1]

    def forward(self, program: Program, kv: Cache, ids: Sequence[int], position: int, wants_logits: bool) -> int | None:
        """See the base class. One token a call; logits are computed at every position."""
        self._begin(position, 1, True)
        program(self, self.weights, kv, np.array(ids, np.int32), position)
        self.sampled = int(self._next[0])
        self.top1_bits = int(self._logits_row.view(np.uint32)[self.sampled])
        if wants_logits and (sampler := self.machine.sampler) is not None:
            np.copyto(sampler.logits, self._logits_row)  # they are at home already, with `act_out`
            self.sampled, _ = sampler.choose()
        return self.sampled if wants_logits else None

    def rows(self) -> Rows:
        return self._rows

    def at(self, cache: F32, position: int) -> F32:
        """As `DeviceInstance.at`, on host arrays."""
        place = cache[position : position + 1]
        if cache.itemsize == 4:
            return place
        rows = self._kv_rows[len(self._unstored)]
        self._unstored.append((place, rows))
        return rows

    def attention(self, out: Any, q: Any, k: Any, v: Any, layer: int, position: int) -> None:
        self._store()
        super().attention(out, q, k, v, layer, position)

    def last(self, x: F32) -> F32:
        return x

    def matmul(self, out: F32, x: F32, weight: Tensor) -> None:
        self.entries.append(("matmul", weight.layer, weight.name, weight.shape))
        act_in, act_out = self._stage("in", x.shape[1]), self._stage("out", out.shape[1])
        backend = self.machine.backend
        backend.copy_h2d(self.device, x, act_in, self._label_of("act_in", weight.layer))
        label = self._label_of(weight.name, weight.layer)
        self._dispatch(self.device, "matmul", act_out, act_in, weight.data[0], label=label)
        backend.copy_d2h(self.device, act_out, out, self._label_of("act_out", weight.layer))

    def _stage(self, name: str, width: int) -> Buffer:
        if (name, width) not in self._staging:
            self._staging[name, width] = self._act[name].reshape(1, width)
        return self._staging[name, width]


def _bits(value: float) -> int:
    """The bits of a number as f32: how an operation is handed what is no integer."""
    return int(np.float32(value).view(np.uint32))


def _widths(model: Model) -> dict[str, int]:
    widths = dict.fromkeys(("x", "xb", "xb2"), model.dim) | dict.fromkeys(("hb", "hb2"), model.hidden_dim)
    return widths | {"q": model.q_dim}


def _weight_set(machine: Machine, find: Callable[[str], Any], layer_of: Callable[[Any, int], Any]) -> WeightSet:
    """The named tensors as `find` gives them, split by layer."""
    if machine.model.recipe is not None:
        return _set_of_layers(machine.model, find)
    by_name: dict[str, Any] = {}
    for spec in machine.model.tensors:
        if spec.role == "unread":
            continue
        data = find(spec.name)
        if spec.name in LAYERED:
            layers = range(spec.shape[0])
            by_name[spec.name] = tuple(Tensor(spec.name, i, spec.shape[1:], layer_of(data, i)) for i in layers)
        else:
            by_name[spec.name] = Tensor(spec.name, -1, spec.shape, data)
    classifier = by_name[machine.model.classifier_name]
    by_name.pop("wcls", None)
    none: dict[str, Any] = dict.fromkeys(OPTIONAL, (None,) * machine.model.n_layers)
    return WeightSet(classifier=classifier, **by_name, **none)


def _set_of_layers(model: Model, find: Callable[[str], Any]) -> WeightSet:
    """The tensors of a checkpoint that has one a layer."""
    known = {spec.name for spec in model.tensors}
    layers: dict[str, list[Tensor | None]] = {}
    whole: dict[str, Any] = {}
    for each in expected_tensors(model):
        tensor = Tensor(each.name, each.layer, each.shape, find(each.name)) if each.name in known else None
        if each.layer >= 0:
            layers.setdefault(each.key, []).append(tensor)
        elif tensor is not None:
            whole[each.key] = tensor
    by_layer: dict[str, Any] = {key: tuple(found) for key, found in layers.items()}
    classifier = whole.pop("wcls", whole["token_embedding"])
    return WeightSet(classifier=classifier, **whole, **by_layer)


def _layer_of_buffer(data: Buffer, layer: int) -> Buffer:
    return data.at(layer)


def _layer_of_both(data: tuple[Buffer | None, Any], layer: int) -> tuple[Buffer | None, Any]:
    buffer, array = data
    return None if buffer is None else buffer.at(layer), array[layer]
