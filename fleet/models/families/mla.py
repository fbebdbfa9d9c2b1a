"""Multi-head latent attention: one latent a token a layer, whole on every rank; indexers keep a key of their own."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fleet.models.blueprint import Blueprint, Family, Row, experts, linear, norm, stamp, swiglu, whole
from fleet.models.config import Config
from fleet.models.families.moe import router
from fleet.models.layers import CacheLayer


@dataclass(frozen=True, kw_only=True, slots=True)
class Latents:
    """The sizes of latent attention; `q_rank` None: queries are projected at once."""

    dim: int
    heads: int
    q_rank: int | None
    kv_rank: int
    nope: int
    rope: int
    value: int
    bias: bool


def read_latents(cfg: Config, dim: int) -> Latents:
    """Reads them; faults for what is missing."""
    return Latents(
        dim=dim, heads=cfg.count("num_attention_heads"), q_rank=cfg.number("q_lora_rank"),
        kv_rank=cfg.count("kv_lora_rank"), nope=cfg.count("qk_nope_head_dim"), rope=cfg.count("qk_rope_head_dim"),
        value=cfg.count("v_head_dim"), bias=cfg.flag("attention_bias", False),
    )  # fmt: skip


def latent_layer(cfg: Config, latents: Latents) -> CacheLayer:
    """The cache of one layer without indexer."""
    return CacheLayer(
        kind="mla", latent_dim=latents.kv_rank, rope_dim=latents.rope,
        sources=(("r", cfg.path("kv_lora_rank")), ("p", cfg.path("qk_rope_head_dim"))),
    )  # fmt: skip


def latent_rows(latents: Latents) -> list[Row]:
    """Down and up projections of queries and of the latent, and the output."""
    dim, heads, name = latents.dim, latents.heads, "self_attn"
    width = latents.nope + latents.rope
    rows: list[Row] = []
    if latents.q_rank is None:
        rows += linear(f"{name}.q_proj", heads * width, dim)
    else:
        rows += linear(f"{name}.q_a_proj", latents.q_rank, dim, latents.bias)
        rows += norm(f"{name}.q_a_layernorm", latents.q_rank)
        rows += linear(f"{name}.q_b_proj", heads * width, latents.q_rank)
    rows += linear(f"{name}.kv_a_proj_with_mqa", latents.kv_rank + latents.rope, dim, latents.bias)
    rows += norm(f"{name}.kv_a_layernorm", latents.kv_rank)
    rows += linear(f"{name}.kv_b_proj", heads * (latents.nope + latents.value), latents.kv_rank)
    return rows + linear(f"{name}.o_proj", dim, heads * latents.value, latents.bias)


def _indexer_rows(cfg: Config, latents: Latents) -> tuple[list[Row], int]:
    """The indexer of one layer and the width of its key."""
    heads, width = cfg.count("index_n_heads"), cfg.count("index_head_dim")
    name = "self_attn.indexer"
    return [
        *linear(f"{name}.wq_b", heads * width, latents.q_rank or 1),
        *linear(f"{name}.wk", width, latents.dim),
        *norm(f"{name}.k_norm", width, True),
        (f"{name}.weights_proj.weight", (heads, latents.dim), "router", 1),
    ], width


def _deepseek(cfg: Config, *, correction: bool = True, indexed: bool = False) -> Blueprint:
    dim, hidden, count = cfg.count("hidden_size"), cfg.count("intermediate_size"), cfg.count("num_hidden_layers")
    vocab = cfg.count("vocab_size")
    latents = read_latents(cfg, dim)
    cfg.raw("num_key_value_heads")
    plan = Blueprint(
        dim=dim, hidden_dim=hidden, n_layers=count, n_heads=latents.heads, n_kv_heads=1,
        head_dim=latents.kv_rank + latents.rope, vocab_size=vocab, tied=cfg.tied(False),
    )  # fmt: skip
    feed_forwards = _feed_forwards(cfg, dim, hidden, count, correction, plan)
    attention = _attentions(cfg, latents, count, indexed, plan)
    if cfg.faults or plan.unknown:
        return plan
    plan.layers = tuple(layer for layer, _ in attention)
    layers = [
        [*norm("input_layernorm", dim), *rows, *feed_forward, *norm("post_attention_layernorm", dim)]
        for (_, rows), feed_forward in zip(attention, feed_forwards, strict=True)
    ]
    plan.rows = whole(dim, vocab, plan.tied, layers)
    _add_mtp(cfg, plan, attention[-1][0], layers[-1], correction)
    return plan


def _feed_forwards(
    cfg: Config, dim: int, hidden: int, layers: int, correction: bool, plan: Blueprint
) -> list[list[Row]]:
    """Dense in the first layers, then experts beside shared ones."""
    dense = swiglu(dim, hidden)
    count = cfg.number("n_routed_experts", least=0)
    if not count:
        return [dense] * layers
    width = cfg.count("moe_intermediate_size")
    shared = (cfg.number("n_shared_experts", least=0) or 0) * width
    first = cfg.count("first_k_dense_replace", 0, least=0)
    if cfg.count("moe_layer_freq", 1) != 1:
        plan.unknown.append("moe_layer_freq other than 1 is not understood in this family")
    alias = cfg.number("num_experts")
    if alias not in (None, count):
        cfg.fault("num_experts", f"{alias:,} contradicts n_routed_experts {count:,}; correct one")
    method = cfg.raw("topk_method")
    sparse = router("mlp.gate", dim, count, correction=correction and method in (None, "noaux_tc"))
    sparse = sparse + experts(dim, width, count)
    sparse += swiglu(dim, shared, name="mlp.shared_experts") if shared else []
    listed = cfg.words("mlp_layer_types", layers)
    by_count = ["dense" if index < first else "sparse" for index in range(layers)]
    if listed is not None and set(listed) - {"dense", "sparse"}:
        plan.unknown.append("mlp_layer_types other than dense and sparse are not understood")
    elif listed is not None and cfg.has("first_k_dense_replace") and listed != by_count:
        cfg.fault("mlp_layer_types", f"contradicts first_k_dense_replace {first:,}; correct one")
    return [dense if word == "dense" else sparse for word in listed or by_count]


def _attentions(
    cfg: Config, latents: Latents, layers: int, indexed: bool, plan: Blueprint
) -> list[tuple[CacheLayer, list[Row]]]:
    """Cache and rows of each layer's attention."""
    plain = latent_layer(cfg, latents)
    rows = latent_rows(latents)
    if not indexed:
        return [(plain, rows)] * layers
    own_rows, width = _indexer_rows(cfg, latents)
    own = replace(
        plain, kind="mla+indexer", index_dim=width, sources=(*plain.sources, ("i", cfg.path("index_head_dim")))
    )
    return [(own, rows + own_rows) if has else (plain, rows) for has in _indexer_owners(cfg, layers, plan)]


def _indexer_owners(cfg: Config, layers: int, plan: Blueprint) -> list[bool]:
    """Which layers run an indexer of their own: `indexer_types`, else a pattern or a frequency, else all."""
    listed = cfg.words("indexer_types", layers)
    if listed is not None:
        if set(listed) - {"full", "shared"}:
            plan.unknown.append("indexer_types other than full and shared are not understood")
        return [word == "full" for word in listed]
    pattern = cfg.raw("index_topk_pattern")
    if pattern is not None:
        if not isinstance(pattern, str) or len(pattern) != layers or set(pattern) - {"F", "S"}:
            plan.unknown.append("index_topk_pattern is not understood")
            return [True] * layers
        return [mark == "F" for mark in pattern]
    every, offset = cfg.count("index_topk_freq", 1), cfg.count("index_skip_topk_offset", 2, least=0)
    return [max(index - offset + 1, 0) % every == 0 for index in range(layers)]


def _add_mtp(cfg: Config, plan: Blueprint, layer: CacheLayer, rows: list[Row], correction: bool) -> None:
    """Layers after the last: an embedding and a head of their own, two norms, a joint of both inputs, one layer."""
    count = cfg.number("num_nextn_predict_layers", least=0) or 0
    plan.mtp_layers = (layer,) * count
    if not correction or not count:
        return
    own: list[Row] = [
        ("embed_tokens.weight", (plan.vocab_size, plan.dim), "embedding", 1),
        *norm("enorm", plan.dim),
        *norm("hnorm", plan.dim),
        ("eh_proj.weight", (plan.dim, 2 * plan.dim), "router", 1),
        *norm("shared_head.norm", plan.dim),
        ("shared_head.head.weight", (plan.vocab_size, plan.dim), "classifier", 1),
        *rows,
    ]
    for index in range(count):
        plan.mtp_rows += stamp(f"model.layers.{plan.n_layers + index}.", own)


def _deepseek_v2(cfg: Config) -> Blueprint:
    return _deepseek(cfg, correction=False)


def _deepseek_v32(cfg: Config) -> Blueprint:
    return _deepseek(cfg, indexed=True)


def _glm4_lite(cfg: Config) -> Blueprint:
    plan = _deepseek(cfg)
    if not cfg.has("mlp_layer_types") and cfg.number("first_k_dense_replace", least=0) != 1:
        # The library reads mlp_layer_types alone and else has one dense layer; vLLM reads the number.
        plan.unknown.append("first_k_dense_replace other than 1 without mlp_layer_types: readers of it disagree")
    return plan


_CONFIGS = "published configs and totals"
_DEEPSEEK = "DeepseekV3ForCausalLM"

FAMILIES: tuple[Family, ...] = (
    Family(
        model_type="deepseek_v2", architectures=("DeepseekV2ForCausalLM",), build=_deepseek_v2, checked=_CONFIGS,
        kinds="mla",
    ),
    Family(
        model_type="deepseek_v3", architectures=(_DEEPSEEK,), build=_deepseek, checked=_CONFIGS, kinds="mla",
        compared=("plain", "fp8"), words="fp8 total equal to 0.002 %: the rest is file headers",
    ),
    Family(
        model_type="kimi_k2", architectures=(_DEEPSEEK, "KimiK2ForCausalLM"), build=_deepseek, checked=_CONFIGS,
        kinds="mla",
    ),
    Family(
        model_type="deepseek_v32", architectures=("DeepseekV32ForCausalLM",), build=_deepseek_v32, checked=_CONFIGS,
        kinds="mla+indexer",
    ),
    Family(
        model_type="glm_moe_dsa", architectures=("GlmMoeDsaForCausalLM",), build=_deepseek_v32,
        checked="the library's count of small configs", kinds="mla+indexer, mla",
        words="layers that share an index keep no key",
    ),
    Family(
        model_type="glm4_moe_lite", architectures=("Glm4MoeLiteForCausalLM",), build=_glm4_lite,
        checked="the library's count of small configs", kinds="mla",
    ),
)  # fmt: skip
