"""The sizes that nearly every decoder has, and which of its layers look back only through a window."""

from __future__ import annotations

from dataclasses import dataclass

from fleet.checkpoints.json_text import shorten
from fleet.models.blueprint import Blueprint
from fleet.models.config import Config
from fleet.models.layers import CacheLayer

_KIND_OF_WORD = {
    "full_attention": "full",
    "attention": "full",
    "sliding_attention": "sliding",
    "chunked_attention": "chunked",
    "linear_attention": "linear",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """dim, heads and widths as the config says them, with the library's rules for those left out."""

    dim: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    head_dim_source: str
    kv_source: str

    @property
    def q(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv(self) -> int:
        return self.kv_heads * self.head_dim

    def blueprint(self, tied: bool) -> Blueprint:
        """A blueprint with these sizes and nothing else."""
        return Blueprint(
            dim=self.dim, hidden_dim=self.hidden, n_layers=self.layers, n_heads=self.heads,
            n_kv_heads=self.kv_heads, head_dim=self.head_dim, vocab_size=self.vocab, tied=tied,
        )  # fmt: skip

    def layer(self, cfg: Config, kind: str = "full", window: int | None = None, window_field: str = "") -> CacheLayer:
        """An attention layer of these heads."""
        sources = (
            ("nk", cfg.path(self.kv_source)),
            ("dk", cfg.path(self.head_dim_source)),
            ("dv", cfg.path(self.head_dim_source)),
            *((("W", cfg.path(window_field)),) if window is not None else ()),
        )
        return CacheLayer(
            kind=kind, heads=self.kv_heads, key_dim=self.head_dim, value_dim=self.head_dim, window=window,
            sources=sources,
        )  # fmt: skip


def read_sizes(
    cfg: Config,
    *,
    hidden: str = "intermediate_size",
    width: str = "head_dim",
    kv: str = "num_key_value_heads",
    layers: int | None = None,
    rotary: bool = True,
) -> Sizes:
    """Reads them; faults for what is missing, wrong or does not divide.

    `width` and `kv` are the fields of head size and KV heads; `layers` counts where num_hidden_layers is left out.
    """
    dim, heads = cfg.count("hidden_size"), 0
    inner = cfg.count(hidden) if hidden else 0
    layers, heads = cfg.count("num_hidden_layers", layers), cfg.count("num_attention_heads")
    given_kv = cfg.number(kv)
    kv_heads = heads if given_kv is None else given_kv
    head_dim = cfg.number(width)
    vocab = cfg.count("vocab_size")
    source = width
    if head_dim is None:
        head_dim, source = max(1, dim // heads), "hidden_size / num_attention_heads"
    if not cfg.faults:
        _check_division(cfg, dim, heads, kv_heads, head_dim, source, rotary)
    return Sizes(
        dim=dim, hidden=inner, layers=layers, heads=heads, kv_heads=kv_heads, head_dim=head_dim, vocab=vocab,
        head_dim_source=source,
        kv_source="num_attention_heads" if given_kv is None else kv,
    )  # fmt: skip


def _check_division(cfg: Config, dim: int, heads: int, kv_heads: int, head_dim: int, source: str, rotary: bool) -> None:
    if source.startswith("hidden_size") and dim % heads:
        cfg.fault("hidden_size", f"{dim:,} is no multiple of num_attention_heads {heads:,}; or add head_dim")
        return
    if rotary and head_dim % 2:
        cfg.fault("head_dim", f"{head_dim} is odd, but rotary embedding turns pairs; correct the config")
    if heads % kv_heads:
        cfg.fault("num_attention_heads", f"{heads:,} is no multiple of num_key_value_heads {kv_heads:,}; correct one")


@dataclass(kw_only=True, slots=True)
class Windows:
    """The kind of each layer (`full`, `sliding`, `chunked`, `linear`) and the window; `unknown` words where unclear."""

    kinds: list[str]
    window: int | None
    unknown: list[str]


def window_of(cfg: Config, name: str = "sliding_window") -> int | None:
    """The window, None when null, zero or left out; a fault when it is no whole number."""
    value = cfg.raw(name)
    if name in cfg.defaults and name not in cfg.document:
        value = cfg.taken[name] = cfg.defaults[name]
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 1 << 31:
        cfg.fault(name, f"is {shorten(value)}: must be a whole number or null")
        return None
    return value or None


def read_windows(cfg: Config, rule: str, layers: int, *, full_every: int = 0, last_full: bool = False) -> Windows:
    """Which layers have a window, from `layer_types`, else by the family's `rule`.

    none: the family has no windows. all: every layer, when a window is given. switch: only with use_sliding_window, in
    the layers from max_window_layers on. pattern: all but every `full_every`-th layer.
    """
    window = window_of(cfg)
    if rule == "switch":
        switched = cfg.flag("use_sliding_window", False)
        window = window if switched else None
    words: list[str] = []
    listed = cfg.words("layer_types", layers)
    if listed is not None:
        kinds = []
        for word in listed:
            kind = _KIND_OF_WORD.get(word)
            if kind is None or (rule == "none" and kind != "full") or (kind == "sliding" and window is None):
                words.append(f"layers of kind {shorten(word)} are not understood")
                kind = "full"
            kinds.append(kind)
        words = list(dict.fromkeys(words))[:8]
        return Windows(kinds=kinds, window=window, unknown=words)
    if window is None:
        return Windows(kinds=["full"] * layers, window=None, unknown=words)
    return Windows(
        kinds=_by_rule(cfg, rule, layers, window, words, full_every, last_full), window=window, unknown=words
    )


def _by_rule(
    cfg: Config, rule: str, layers: int, window: int, words: list[str], full_every: int, last_full: bool
) -> list[str]:
    if rule == "none":
        words.append(f"sliding window {window:,} is not understood in this family")
        return ["full"] * layers
    if rule == "all":
        return ["sliding"] * layers
    if rule == "switch":
        first = cfg.count("max_window_layers", 28, least=0)
        return ["sliding" if index >= first else "full" for index in range(layers)]
    kinds = ["full" if (index + 1) % full_every == 0 else "sliding" for index in range(layers)]
    if last_full:
        kinds[-1] = "full"
    return kinds


def attention_layers(cfg: Config, sizes: Sizes, windows: Windows) -> tuple[CacheLayer, ...]:
    """One CacheLayer a layer, for kinds `full` and `sliding`."""
    full = sizes.layer(cfg)
    if windows.window is None or "sliding" not in windows.kinds:
        return (full,) * sizes.layers
    sliding = sizes.layer(cfg, "sliding", windows.window, "sliding_window")
    return tuple(sliding if kind == "sliding" else full for kind in windows.kinds)
