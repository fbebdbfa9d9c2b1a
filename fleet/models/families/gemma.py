"""Gemma 3 and 4: interleaved windows; Gemma 4's full layers have heads of their own, and its last layers may share."""

from __future__ import annotations

from dataclasses import replace

from fleet.models.blueprint import Blueprint, Family, Row, attention, norm, swiglu, whole
from fleet.models.config import Config
from fleet.models.families.dense import SANDWICH
from fleet.models.layers import CacheLayer
from fleet.models.sizes import Sizes, Windows, attention_layers, read_sizes, read_windows


def _sandwich(dim: int) -> list[Row]:
    return [row for name in SANDWICH for row in norm(name, dim)]


def _gemma3(cfg: Config) -> Blueprint:
    sizes = read_sizes(cfg)
    plan = sizes.blueprint(cfg.tied(True))
    bias = cfg.flag("attention_bias", False)
    windows = read_windows(cfg, "pattern", sizes.layers, full_every=_every(cfg, 6))
    plan.unknown += windows.unknown
    if set(windows.kinds) - {"full", "sliding"}:
        plan.unknown.append("layer_types name layers that this family does not have")
    if cfg.faults or plan.unknown:
        return plan
    plan.layers = attention_layers(cfg, sizes, windows)
    layer = attention(sizes.dim, sizes.q, sizes.kv, sizes.kv, qkv_bias=bias, o_bias=bias)
    layer += norm("self_attn.q_norm", sizes.head_dim) + norm("self_attn.k_norm", sizes.head_dim)
    layer += swiglu(sizes.dim, sizes.hidden) + _sandwich(sizes.dim)
    plan.rows = whole(sizes.dim, sizes.vocab, plan.tied, [layer] * sizes.layers)
    return plan


def _every(cfg: Config, default: int) -> int:
    for name in ("sliding_window_pattern", "_sliding_window_pattern"):
        if cfg.has(name):
            return cfg.count(name)
    return default


def _gemma4(cfg: Config) -> Blueprint:
    sizes = read_sizes(cfg)
    plan = sizes.blueprint(cfg.tied(True))
    windows = read_windows(cfg, "pattern", sizes.layers, full_every=6, last_full=True)
    plan.unknown += windows.unknown
    shared = cfg.number("num_kv_shared_layers", least=0) or 0
    if shared:
        plan.unknown.append("layers that share the cache of another (num_kv_shared_layers) are not understood")
    if cfg.raw("use_bidirectional_attention") == "all":
        plan.unknown.append("attention to both sides is not that of a decoder")
    one_projection = cfg.flag("attention_k_eq_v", False)
    wide = _gemma4_full(cfg, sizes, one_projection)
    bias = cfg.flag("attention_bias", False)
    extra = _gemma4_experts(cfg, sizes.dim)
    per_layer = cfg.number("hidden_size_per_layer_input", least=0)
    if per_layer or "hidden_size_per_layer_input" not in cfg.document:
        plan.unknown.append("embeddings of each layer (hidden_size_per_layer_input) are not understood")
    cfg.raw("vocab_size_per_layer_input"), cfg.raw("use_double_wide_mlp")
    if cfg.faults or plan.unknown:
        return plan
    if set(windows.kinds) - {"full", "sliding"}:
        plan.unknown.append("layer_types name layers that this family does not have")
        return plan
    return _gemma4_rows(cfg, plan, sizes, windows, wide, one_projection, bias, extra)


def _gemma4_full(cfg: Config, sizes: Sizes, one_projection: bool) -> CacheLayer:
    """The cache of a full layer: K and V are both kept although one projection makes them."""
    layer = sizes.layer(cfg)
    width = cfg.count("global_head_dim", 512)
    heads = cfg.number("num_global_key_value_heads")
    kv = heads if heads is not None and one_projection else sizes.kv_heads
    field = "num_global_key_value_heads" if heads is not None and one_projection else "num_key_value_heads"
    sources = (("nk", cfg.path(field)), ("dk", cfg.path("global_head_dim")), ("dv", cfg.path("global_head_dim")))
    return replace(layer, heads=kv, key_dim=width, value_dim=width, sources=sources)


def _gemma4_experts(cfg: Config, dim: int) -> list[Row]:
    """Experts beside the dense part, with a scaled router and three norms more."""
    if not cfg.flag("enable_moe_block", False):
        for name in ("num_experts", "top_k_experts", "moe_intermediate_size"):
            cfg.raw(name)
        return []
    count, width = cfg.count("num_experts"), cfg.count("moe_intermediate_size")
    cfg.raw("top_k_experts")
    rows: list[Row] = [
        ("router.proj.weight", (count, dim), "router", 1),
        ("router.scale", (dim,), "router", 1),
        ("router.per_expert_scale", (count,), "router", 1),
        ("experts.gate_up_proj", (count, 2 * width, dim), "projection", 1),
        ("experts.down_proj", (count, dim, width), "projection", 1),
    ]
    for name in ("post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2"):
        rows += norm(name, dim)
    return rows


def _gemma4_rows(
    cfg: Config, plan: Blueprint, sizes: Sizes, windows: Windows, wide: CacheLayer, one_projection: bool, bias: bool,
    extra: list[Row],
) -> Blueprint:  # fmt: skip
    window = windows.window
    near = sizes.layer(cfg, "sliding", window, "sliding_window") if window else sizes.layer(cfg)
    plan.layers = tuple(near if kind == "sliding" else wide for kind in windows.kinds)
    dim = sizes.dim
    rows = {}
    for kind, cache in (("sliding", near), ("full", wide)):
        q, kv = sizes.heads * cache.key_dim, cache.heads * cache.key_dim
        layer = attention(dim, q, kv, kv, qkv_bias=bias, o_bias=bias)
        if kind == "full" and one_projection:
            layer = [row for row in layer if ".v_proj." not in row[0]]
        layer += norm("self_attn.q_norm", cache.key_dim) + norm("self_attn.k_norm", cache.key_dim)
        layer += swiglu(dim, sizes.hidden) + _sandwich(dim) + extra
        rows[kind] = [*layer, ("layer_scalar", (1,), "buffer", 1)]
    plan.rows = whole(dim, sizes.vocab, plan.tied, [rows[kind] for kind in windows.kinds])
    return plan


_GEMMA3_DEFAULTS = {
    "vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096,
    "max_position_embeddings": 131072,
}  # fmt: skip

FAMILIES: tuple[Family, ...] = (
    Family(
        model_type="gemma3_text", architectures=("Gemma3ForCausalLM",), build=_gemma3,
        checked="published configs and totals", kinds="sliding, full", defaults=_GEMMA3_DEFAULTS,
    ),
    Family(
        model_type="gemma4_text", architectures=("Gemma4ForCausalLM",), build=_gemma4,
        checked="the library's count of small configs; caches measured by an engine", kinds="sliding, full",
        defaults={"head_dim": 256, "sliding_window": 512, "max_position_embeddings": 131072},
        words="full layers have heads of their own; K and V are both kept where one projection makes them",
    ),
)  # fmt: skip
