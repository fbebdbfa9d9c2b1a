"""What a forward call computes and reads: operations and bytes of memory, from shapes alone. Exact integers.

A multiplication by a matrix of n parameters is 2n operations a token; an attention layer makes 2 (dk + dv) operations a
query head and attended position. Weights are read once a call, a cache once a call. What is left out is named in
`LEFT_OUT`. Times are made of these by `planner.roofline`; nothing here knows a rate.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache

from fleet.model import DTYPE_BYTES, Model, TensorSpec
from fleet.models.kv import layer_state_bytes, token_bytes
from fleet.models.layers import KINDS, CacheLayer
from fleet.same import Same

LEFT_OUT = (
    "activations, norms and softmax, the operations of recurrences, launches and the host are not counted; a prompt is"
    " handed over when all of it is computed"
)
"""In words, what no figure of this module holds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Calls:
    """Forward calls of one phase: positions first .. first + tokens - 1 of each of `batch` sequences, `chunk` a call.

    `logits` is for how many positions of a sequence the classifier is computed.
    """

    first: int
    tokens: int
    chunk: int = 1
    batch: int = 1
    logits: int = 0

    @property
    def count(self) -> int:
        """ceil(tokens / chunk)."""
        return -(-self.tokens // self.chunk)

    def sizes(self) -> list[tuple[int, int]]:
        """(how many calls, positions of one) of the whole calls and of the last."""
        whole, rest = divmod(self.tokens, self.chunk)
        return [(count, size) for count, size in ((whole, self.chunk), (1, rest)) if count and size]


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """`times` equal pieces of work: operations with numbers of one type, and bytes read or written in memory."""

    name: str
    numbers: str
    flops: int
    bytes: int
    times: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightTable:
    """Parameters that are multiplied, and bytes that are read, by how often a call needs them.

    `experts`: (number of experts, parameters of one, bytes of one) summed over layers, by number.
    """

    parameters: int
    bytes: int
    head_parameters: int
    head_bytes: int
    row_bytes: int
    experts: tuple[tuple[int, int, int], ...] = field(default=())


def is_routed(tensor: TensorSpec) -> bool:
    """Whether a tensor holds routed experts: one tensor each, or all stacked in one."""
    if tensor.per_layer or tensor.role not in ("projection", "scale", "bias"):
        return False
    if tensor.repeat > 1:
        return True
    # llama2.c stacks its layers so, under names without a dot.
    stacked = len(tensor.shape) >= 3 and "." in tensor.name and tensor.role in ("projection", "scale")
    return stacked or (".experts." in tensor.name and len(tensor.shape) == 2 and tensor.role == "bias")


def weight_table(model: Model, weights_dtype: str) -> WeightTable:
    """The table of a model (or of what one rank holds of it) stored in this type."""
    width = None if weights_dtype == model.weights_dtype else DTYPE_BYTES[weights_dtype]
    return _table(Same(model.tensors), width, model.shared_classifier)


@lru_cache(maxsize=256)
def _table(tensors: Same[tuple[TensorSpec, ...]], width: int | None, shared_classifier: bool) -> WeightTable:
    parameters = nbytes = head = head_bytes = row = 0
    experts: dict[int, list[int]] = {}
    wanted = "embedding" if shared_classifier else "classifier"
    for tensor in tensors.value:
        if tensor.role in ("unread", "vision"):
            continue
        size = tensor.nbytes if width is None else tensor.n_elements * width
        multiplied = tensor.n_parameters if tensor.role in ("projection", "router", "recurrent") else 0
        if tensor.role in ("embedding", "classifier"):
            row += size // max(1, tensor.shape[0]) if tensor.role == "embedding" else 0
            if tensor.role == wanted:
                head, head_bytes = head + tensor.n_parameters, head_bytes + size
        elif is_routed(tensor):
            count = tensor.repeat if tensor.repeat > 1 else tensor.shape[0]
            held = experts.setdefault(count, [0, 0])
            held[0] += multiplied // count
            held[1] += size // count
        else:
            parameters, nbytes = parameters + multiplied, nbytes + size
    return WeightTable(
        parameters=parameters, bytes=nbytes, head_parameters=head, head_bytes=head_bytes, row_bytes=row,
        experts=tuple((count, held[0], held[1]) for count, held in sorted(experts.items())),
    )  # fmt: skip


def work_unknown(model: Model) -> tuple[str, ...]:
    """In words, why the work of a forward call is not known; empty where it is."""
    words = []
    routed = bool(weight_table(model, model.weights_dtype).experts)
    if not model.tensors:
        words.append(f"the tensors of {model.name} are not understood")
    if routed and model.experts_per_token is None:
        words.append(f"how many experts a token of {model.name} goes through is not known")
    if any(layer.kind == "mla+indexer" for layer in dict.fromkeys(model.caches)):
        words.append("which positions an indexer leaves to attention is not modelled")
    return tuple(words)


def weight_work(model: Model, weights_dtype: str, numbers: str, calls: Calls) -> tuple[Work, ...]:
    """Multiplications by weights: a piece for the whole calls and one for the last, and one for the classifier.

    An expert is read once a call if a token goes through it; tokens are taken to spread over as many as they can:
    min(E, tokens * k), the most that a call can read.
    """
    table = weight_table(model, weights_dtype)
    k = model.experts_per_token or 0
    out = []
    for times, size in calls.sizes():
        tokens = size * calls.batch
        flops = 2 * tokens * (table.parameters + sum(k * each for _, each, _ in table.experts))
        nbytes = table.bytes + tokens * table.row_bytes
        nbytes += sum(min(count, tokens * k) * size_of for count, _, size_of in table.experts)
        out.append(Work(name="weights", numbers=numbers, flops=flops, bytes=nbytes, times=times))
    if calls.logits and table.head_parameters:
        flops = 2 * calls.batch * table.head_parameters
        out.append(Work(name="classifier", numbers=numbers, flops=flops, bytes=table.head_bytes, times=calls.logits))
    return tuple(out)


def attention_work(model: Model, kv_dtype: str, numbers: str, calls: Calls) -> tuple[Work, ...]:
    """Attention over the cache, a piece for each sort of layer and all calls together; and what is written to it."""
    out = []
    for layer, layers in Counter(model.caches).items():
        growth = KINDS[layer.kind].growth
        if growth == "none" or not calls.tokens:
            continue
        if growth == "constant":
            conv = kv_dtype if kv_dtype in ("bf16", "fp16", "fp32") else "bf16"
            moved = 2 * layer_state_bytes(layer, conv=conv) * calls.count
            out.append(Work(name="state", numbers=numbers, flops=0, bytes=layers * calls.batch * moved))
            continue
        pair = 2 * model.n_heads * _widths(model, layer, decode=calls.chunk == 1)
        flops = pair * attended(calls, layer.window)
        moved = token_bytes(layer, kv_dtype) * (read_positions(calls, layer.window) + calls.tokens)
        scale = layers * calls.batch
        out.append(Work(name="attention", numbers=numbers, flops=scale * flops, bytes=scale * moved))
    return tuple(out)


def _widths(model: Model, layer: CacheLayer, *, decode: bool) -> int:
    """Elements that one query head multiplies a position: of the key, and of the value.

    MLA keeps the latent in decode (latent + rope, and the latent again); over a prompt it is taken apart into heads of
    nope + rope and value, whose widths are those of the up projection (DeepSeek-V2, arXiv 2405.04434, section 2.1).
    """
    if not layer.latent_dim:
        return layer.key_dim + layer.value_dim
    up = next((t for t in model.tensors if t.name.endswith("kv_b_proj.weight") and t.role == "projection"), None)
    if decode or up is None:
        return 2 * layer.latent_dim + layer.rope_dim
    return up.n_parameters // layer.latent_dim // model.n_heads + layer.rope_dim


def attended(calls: Calls, window: int | None) -> int:
    """Sum over the positions of min(position + 1, window): how many positions each one attends to."""
    return sum_of_minima(calls.first + 1, 1, calls.tokens, window)


def read_positions(calls: Calls, window: int | None) -> int:
    """Cached positions read, a call reading each once: the sum of min(end, window - 1 + its positions) over calls."""
    whole, rest = divmod(calls.tokens, calls.chunk)
    bound = None if window is None else window - 1 + calls.chunk
    total = sum_of_minima(calls.first + calls.chunk, calls.chunk, whole, bound)
    if rest:
        end = calls.first + calls.tokens
        total += end if window is None else min(end, window - 1 + rest)
    return total


def sum_of_minima(first: int, step: int, count: int, bound: int | None) -> int:
    """Sum of min(first + i * step, bound) for i in 0 .. count - 1, in closed form; no bound: of the series itself."""
    below = count
    if bound is not None:
        below = 0 if first >= bound else min(count, -(-(bound - first) // step))
    series = below * first + step * below * (below - 1) // 2
    return series + (count - below) * (bound or 0)
