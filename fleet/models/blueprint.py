"""What a family makes of a config: layers and a tensor table, and the parts that such tables are made of.

Shapes follow the checkpoints: a linear weight is [out, in]. A row is (name, shape, role, repeat); a family builds the
rows of one layer of each sort once and stamps them with the layer's number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fleet.model import Role
from fleet.models.config import Config
from fleet.models.layers import CacheLayer

Row = tuple[str, tuple[int, ...], Role, int]
"""(name, shape, role, how many tensors of this shape: `{}` in the name is their number)."""
Sources = tuple[tuple[str, str], ...]


@dataclass(kw_only=True, slots=True)
class Blueprint:
    """A model before its types are known. `layers` None or `rows` None: not understood, and `unknown` says why."""

    dim: int = 0
    hidden_dim: int = 0
    n_layers: int = 0
    n_heads: int = 0
    n_kv_heads: int = 0
    head_dim: int = 0
    vocab_size: int = 0
    tied: bool = False
    layers: tuple[CacheLayer, ...] | None = None
    rows: list[Row] | None = None
    mtp_layers: tuple[CacheLayer, ...] = ()
    mtp_rows: list[Row] = field(default_factory=list)
    mtp_unknown: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    excludes: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """One family: its config's `model_type`, the architectures that are plain decoders of it, how it is read.

    `defaults` are the library's values of fields that its configs leave out. `compared` says of which weights (`plain`,
    or a quantisation) the bytes were compared with a published or a library's count: only these are given as weights.
    `checked` tells in words with what the whole family was compared.
    """

    model_type: str
    architectures: tuple[str, ...]
    build: Callable[[Config], Blueprint]
    defaults: Mapping[str, int] = field(default_factory=dict)
    compared: tuple[str, ...] = ("plain",)
    checked: str
    kinds: str
    words: str = ""


def linear(name: str, n_out: int, n_in: int, bias: bool = False, role: Role = "projection") -> list[Row]:
    """A weight [out, in] and, with `bias`, its bias."""
    rows: list[Row] = [(f"{name}.weight", (n_out, n_in), role, 1)]
    if bias:
        rows.append((f"{name}.bias", (n_out,), "bias", 1))
    return rows


def norm(name: str, width: int, bias: bool = False) -> list[Row]:
    """A norm's scale and, for a layer norm, its bias."""
    rows: list[Row] = [(f"{name}.weight", (width,), "norm", 1)]
    if bias:
        rows.append((f"{name}.bias", (width,), "bias", 1))
    return rows


def attention(
    dim: int, q: int, k: int, v: int, *, o_in: int | None = None, qkv_bias: bool = False, o_bias: bool = False,
    name: str = "self_attn",
) -> list[Row]:  # fmt: skip
    """Four projections of `q`, `k`, `v` rows; the output reads `o_in` elements (default `q`)."""
    return [
        *linear(f"{name}.q_proj", q, dim, qkv_bias),
        *linear(f"{name}.k_proj", k, dim, qkv_bias),
        *linear(f"{name}.v_proj", v, dim, qkv_bias),
        *linear(f"{name}.o_proj", dim, q if o_in is None else o_in, o_bias),
    ]


def swiglu(dim: int, hidden: int, *, bias: bool = False, name: str = "mlp") -> list[Row]:
    """Gate, up and down."""
    return [
        *linear(f"{name}.gate_proj", hidden, dim, bias),
        *linear(f"{name}.up_proj", hidden, dim, bias),
        *linear(f"{name}.down_proj", dim, hidden, bias),
    ]


def experts(
    dim: int, hidden: int, count: int, *, name: str = "mlp.experts",
    matrices: tuple[str, str, str] | tuple[str, str] = ("gate_proj", "up_proj", "down_proj"),
) -> list[Row]:  # fmt: skip
    """`count` experts, a tensor a matrix and expert; the last matrix goes down, the others up."""
    rows: list[Row] = []
    for matrix in matrices:
        shape = (dim, hidden) if matrix == matrices[-1] else (hidden, dim)
        rows.append((f"{name}.{{}}.{matrix}.weight", shape, "projection", count))
    return rows


def stamp(prefix: str, rows: list[Row]) -> list[Row]:
    """The rows with `prefix` before each name."""
    return [(prefix + name, shape, role, repeat) for name, shape, role, repeat in rows]


def whole(
    dim: int, vocab: int, tied: bool, layers: list[list[Row]], *, final: list[Row] | None = None,
    embedding: str = "embed_tokens", prefix: str = "model.", norm_name: str = "norm", inside: str = "layers",
) -> list[Row]:  # fmt: skip
    """Embedding, every layer's rows, the last norm, and a head where it is not the embedding."""
    rows: list[Row] = [(f"{prefix}{embedding}.weight", (vocab, dim), "embedding", 1)]
    for index, own in enumerate(layers):
        rows += stamp(f"{prefix}{inside}.{index}.", own)
    rows += stamp(prefix, norm(norm_name, dim)) if final is None else final
    if not tied:
        rows.append(("lm_head.weight", (vocab, dim), "classifier", 1))
    return rows
