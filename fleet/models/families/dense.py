"""Dense decoders with seven projections a layer: they differ in biases, norms, fused matrices and windows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from fleet.models.blueprint import Blueprint, Family, Row, attention, linear, norm, swiglu, whole
from fleet.models.config import Config
from fleet.models.layers import CacheLayer
from fleet.models.sizes import Sizes, attention_layers, read_sizes, read_windows

_PRE = ("input_layernorm", "post_attention_layernorm")
_POST = ("post_attention_layernorm", "post_feedforward_layernorm")
SANDWICH = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")


@dataclass(frozen=True, kw_only=True, slots=True)
class Dense:
    """How a dense family differs. `qkv_bias` None: as `attention_bias` says (left out: `bias_default`); `o_bias` None:
    as q, k, v.

    `harmless` fields change no byte; those of `off` must be false: what they switch on is not written down here.
    `qk_norm`: None, `head` (one norm of head_dim), `full` (all heads' width), `each` (a norm of its own for each
    head), or `switch` (`each` where `use_qk_norm` says so). `windows` is a rule of `read_windows`;
    `reads_pattern`: the library reads `sliding_window_pattern`, and does not keep to `full_every`.
    """

    tied: bool = False
    qkv_bias: bool | None = None
    bias_default: bool = False
    o_bias: bool | None = None
    mlp_bias: bool = False
    qk_norm: str | None = None
    norms: tuple[str, ...] = _PRE
    fused_qkv: bool = False
    fused_mlp: bool = False
    windows: str = "none"
    full_every: int = 0
    reads_pattern: bool = False
    mtp: str = ""
    harmless: tuple[str, ...] = field(default=())
    off: tuple[str, ...] = field(default=())


def build(style: Dense, cfg: Config) -> Blueprint:
    """The blueprint of a dense family."""
    sizes = read_sizes(cfg)
    for name in style.harmless:
        cfg.raw(name)
    plan = sizes.blueprint(cfg.tied(style.tied))
    plan.unknown += [f"{name} true is not understood in this family" for name in style.off if cfg.flag(name, False)]
    qkv_bias, o_bias, mlp_bias = _biases(style, cfg, plan)
    every = _full_every(style, cfg)
    if style.full_every and not style.reads_pattern and every != style.full_every and not cfg.has("layer_types"):
        plan.unknown.append(f"sliding_window_pattern {every}: the library takes {style.full_every} in this family")
    windows = read_windows(cfg, style.windows, sizes.layers, full_every=every)
    plan.unknown += windows.unknown
    if "chunked" in windows.kinds or "linear" in windows.kinds:
        plan.unknown.append("layer_types name layers that this family does not have")
    if cfg.faults or plan.unknown:
        return plan
    plan.layers = attention_layers(cfg, sizes, windows)
    if style.qk_norm == "switch":
        style = replace(style, qk_norm="each" if cfg.flag("use_qk_norm", False) else None)
    layer = _layer_rows(style, sizes, qkv_bias, o_bias, mlp_bias)
    plan.rows = whole(sizes.dim, sizes.vocab, plan.tied, [layer] * sizes.layers)
    if style.mtp:
        _add_mtp(style, cfg, plan, sizes.layer(cfg))
    return plan


def _add_mtp(style: Dense, cfg: Config, plan: Blueprint, layer: CacheLayer) -> None:
    count = cfg.number(style.mtp, least=0) or 0
    plan.mtp_layers = (layer,) * count
    if count:
        plan.mtp_unknown.append("weights of the MTP layers were compared with nothing: not counted")


def _biases(style: Dense, cfg: Config, plan: Blueprint) -> tuple[bool, bool, bool]:
    default = style.bias_default or style.qkv_bias is True
    attention_bias, mlp_bias = cfg.flag("attention_bias", default), cfg.flag("mlp_bias", False)
    if style.qkv_bias is not None and attention_bias is not style.qkv_bias:
        plan.unknown.append(f"attention_bias {str(attention_bias).lower()} is not understood in this family")
    if mlp_bias and not style.mlp_bias:
        plan.unknown.append("mlp_bias true is not understood in this family")
    return attention_bias, attention_bias if style.o_bias is None else style.o_bias, mlp_bias


def _full_every(style: Dense, cfg: Config) -> int:
    """Every how many layers one is full: the config's pattern (a number, or letters ending with G) or the family's."""
    for name in ("sliding_window_pattern", "_sliding_window_pattern"):
        value = cfg.raw(name)
        if isinstance(value, str) and value.strip("L") == "G" and value.endswith("G"):
            return len(value)
        if isinstance(value, str):
            cfg.fault(name, "must be a whole number, or letters L ending with one G")
        elif value is not None and style.full_every:
            return cfg.count(name)
    return style.full_every


def _layer_rows(style: Dense, sizes: Sizes, qkv_bias: bool, o_bias: bool, mlp_bias: bool) -> list[Row]:
    dim, hidden = sizes.dim, sizes.hidden
    rows: list[Row] = norm(style.norms[0], dim)
    if style.fused_qkv:
        rows += linear("self_attn.qkv_proj", sizes.q + 2 * sizes.kv, dim, qkv_bias)
        rows += linear("self_attn.o_proj", dim, sizes.q, o_bias)
    else:
        rows += attention(dim, sizes.q, sizes.kv, sizes.kv, qkv_bias=qkv_bias, o_bias=o_bias)
    if style.fused_mlp:
        rows += linear("mlp.gate_up_proj", 2 * hidden, dim, mlp_bias) + linear("mlp.down_proj", dim, hidden, mlp_bias)
    else:
        rows += swiglu(dim, hidden, bias=mlp_bias)
    rows += qk_norms(style.qk_norm, sizes)
    for name in style.norms[1:]:
        rows += norm(name, dim)
    return rows


def qk_norms(which: str | None, sizes: Sizes) -> list[Row]:
    """The norms of queries and keys: none, of one head, of all heads, or one of each head."""
    if which is None:
        return []
    if which == "each":
        return [
            (f"self_attn.{n}_norm.weight", (h, sizes.head_dim), "norm", 1)
            for n, h in (("q", sizes.heads), ("k", sizes.kv_heads))
        ]
    widths = (sizes.head_dim, sizes.head_dim) if which == "head" else (sizes.q, sizes.kv)
    return norm("self_attn.q_norm", widths[0]) + norm("self_attn.k_norm", widths[1])


def _family(
    model_type: str, architectures: str | tuple[str, ...], style: Dense, checked: str, *,
    compared: tuple[str, ...] = ("plain",), kinds: str = "full", words: str = "", **defaults: int,
) -> Family:  # fmt: skip
    builder: Callable[[Config], Blueprint] = partial(build, style)
    names = (architectures,) if isinstance(architectures, str) else architectures
    return Family(
        model_type=model_type, architectures=names, build=builder, checked=checked, compared=compared, kinds=kinds,
        words=words, defaults=defaults,
    )  # fmt: skip


_CONFIGS = "published configs and totals"
_LIBRARY = "the library's count of small configs"

FAMILIES: tuple[Family, ...] = (
    _family("llama", "LlamaForCausalLM", Dense(mlp_bias=True), _CONFIGS, compared=("plain", "bitsandbytes int8"),
        words="the int8 formula equals a published total to the byte",
    ),
    _family(
        "mistral", "MistralForCausalLM", Dense(qkv_bias=False, windows="all"), _CONFIGS, kinds="full, sliding",
        words="a config without sliding_window has the library's 4,096", sliding_window=4096,
    ),
    _family(
        "ministral3", "Ministral3ForCausalLM", Dense(qkv_bias=False, windows="all"), _LIBRARY, kinds="full, sliding",
    ),
    _family(
        "qwen2", "Qwen2ForCausalLM", Dense(qkv_bias=True, o_bias=False, windows="switch"), _CONFIGS,
        kinds="full, sliding",
    ),
    _family("qwen3", "Qwen3ForCausalLM", Dense(qk_norm="head", windows="switch"), _CONFIGS, kinds="full, sliding"),
    _family("gemma", "GemmaForCausalLM", Dense(tied=True), _CONFIGS, head_dim=256),
    _family(
        "gemma2", "Gemma2ForCausalLM",
        Dense(tied=True, norms=SANDWICH, windows="pattern", full_every=2), _CONFIGS, kinds="sliding, full",
        head_dim=256, sliding_window=4096,
    ),
    _family(
        "phi3", "Phi3ForCausalLM", Dense(fused_qkv=True, fused_mlp=True, qkv_bias=False, windows="all"), _CONFIGS,
        kinds="full, sliding",
    ),
    _family("olmo2", "Olmo2ForCausalLM", Dense(qk_norm="full", norms=_POST), _LIBRARY),
    _family(
        "olmo3", "Olmo3ForCausalLM", Dense(qk_norm="full", norms=_POST, windows="pattern", full_every=4), _CONFIGS,
        kinds="sliding, full", sliding_window=4096,
    ),
    _family(
        "exaone4", "Exaone4ForCausalLM",
        Dense(qkv_bias=False, qk_norm="head", norms=_POST, windows="pattern", full_every=4, reads_pattern=True),
        _LIBRARY,
        kinds="sliding, full", sliding_window=4096,
    ),
    _family(
        "mimo", "MiMoForCausalLM",
        Dense(qkv_bias=True, o_bias=False, windows="switch", mtp="num_nextn_predict_layers"),
        "parameters equal a published formula; no published total", compared=(),
    ),
    _family("qwen3_vl_text", "Qwen3VLForCausalLM", Dense(qk_norm="head"), _LIBRARY),
    _family("granite", "GraniteForCausalLM", Dense(mlp_bias=True), _LIBRARY),
    _family(
        "glm", "GlmForCausalLM", Dense(fused_mlp=True, o_bias=False, bias_default=True), _LIBRARY, head_dim=128,
    ),
    _family(
        "glm4", "Glm4ForCausalLM",
        Dense(
            fused_mlp=True, o_bias=False, bias_default=True,
            norms=("input_layernorm", "post_attention_layernorm", "post_self_attn_layernorm", "post_mlp_layernorm"),
        ),
        _LIBRARY, head_dim=128,
    ),
    _family(
        "seed_oss", "SeedOssForCausalLM",
        Dense(mlp_bias=True, o_bias=False, bias_default=True, off=("attention_out_bias",)), _LIBRARY,
    ),
    _family(
        "cohere", "CohereForCausalLM", Dense(tied=True, norms=("input_layernorm",), qk_norm="switch"), _LIBRARY,
    ),
    _family(
        "cohere2", "Cohere2ForCausalLM",
        Dense(tied=True, norms=("input_layernorm",), windows="pattern", full_every=4, reads_pattern=True), _LIBRARY,
        kinds="sliding, full", sliding_window=4096,
    ),
    _family(
        "smollm3", "SmolLM3ForCausalLM",
        Dense(tied=True, mlp_bias=True, windows="switch", harmless=("no_rope_layers", "no_rope_layer_interval")),
        _LIBRARY, kinds="full, sliding",
    ),
)  # fmt: skip
