"""Full attention between layers of linear attention: gated DeltaNet (Qwen) and KDA (Kimi)."""

from __future__ import annotations

from fleet.checkpoints.json_text import shorten
from fleet.models.blueprint import Blueprint, Family, Row, attention, experts, linear, norm, swiglu, whole
from fleet.models.config import Config
from fleet.models.families.mla import latent_layer, latent_rows, read_latents
from fleet.models.families.moe import qwen_experts, router, sparse_layers
from fleet.models.layers import CacheLayer
from fleet.models.sizes import Sizes, read_sizes, read_windows

_STATE_WORDS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def state_dtype(cfg: Config, plan: Blueprint) -> str | None:
    """The type of the recurrent state as the config says it; None when it says nothing."""
    for name in ("mamba_ssm_dtype", "mamba_ssm_cache_dtype"):
        word = cfg.raw(name)
        if word is None:
            continue
        if not isinstance(word, str) or word.removeprefix("torch.") not in _STATE_WORDS:
            plan.unknown.append(f"{name} {shorten(word)} is not understood")
            return None
        return _STATE_WORDS[word.removeprefix("torch.")]
    return None


def _delta_layer(cfg: Config, plan: Blueprint) -> CacheLayer:
    """A matrix per value head, and the window of a convolution over q, k and v."""
    keys, values = cfg.count("linear_num_key_heads"), cfg.count("linear_num_value_heads")
    dk, dv = cfg.count("linear_key_head_dim"), cfg.count("linear_value_head_dim")
    kernel = cfg.count("linear_conv_kernel_dim")
    names = (
        ("nv", "linear_num_value_heads"), ("nk", "linear_num_key_heads"), ("dk", "linear_key_head_dim"),
        ("dv", "linear_value_head_dim"), ("kc", "linear_conv_kernel_dim"),
    )  # fmt: skip
    return CacheLayer(
        kind="gated-deltanet", state_heads=values, state_unit=dk * dv, conv_columns=kernel - 1,
        conv_channels=values * dv, conv_groups=keys, conv_group_dim=2 * dk, state_dtype=state_dtype(cfg, plan),
        sources=tuple((symbol, cfg.path(name)) for symbol, name in names),
    )  # fmt: skip


def _delta_rows(layer: CacheLayer, dim: int, dv: int, *, fused: bool) -> list[Row]:
    """Projections in, the convolution, decay and its bias, a norm of one head, the output."""
    values, name = layer.state_heads, "linear_attn"
    channels = layer.conv_channels + layer.conv_groups * layer.conv_group_dim
    width, kernel = values * dv, layer.conv_columns + 1
    if fused:
        rows = linear(f"{name}.in_proj_qkvz", channels + width, dim) + linear(f"{name}.in_proj_ba", 2 * values, dim)
    else:
        rows = linear(f"{name}.in_proj_qkv", channels, dim) + linear(f"{name}.in_proj_z", width, dim)
        rows += linear(f"{name}.in_proj_b", values, dim) + linear(f"{name}.in_proj_a", values, dim)
    rows += [
        (f"{name}.conv1d.weight", (channels, 1, kernel), "recurrent", 1),
        (f"{name}.dt_bias", (values,), "recurrent", 1),
        (f"{name}.A_log", (values,), "recurrent", 1),
    ]
    return rows + norm(f"{name}.norm", dv) + linear(f"{name}.out_proj", dim, width)


def _gated_rows(sizes: Sizes, bias: bool) -> list[Row]:
    """Full attention with an output gate beside the queries, and norms of one head."""
    rows = attention(sizes.dim, 2 * sizes.q, sizes.kv, sizes.kv, o_in=sizes.q, qkv_bias=bias, o_bias=bias)
    return rows + norm("self_attn.q_norm", sizes.head_dim) + norm("self_attn.k_norm", sizes.head_dim)


def _linear_kinds(cfg: Config, plan: Blueprint, layers: int) -> list[str]:
    """`full` or `linear` for each layer: listed, or every `full_attention_interval`-th is full."""
    every = cfg.count("full_attention_interval", 4)
    windows = read_windows(cfg, "switch", layers)
    plan.unknown += windows.unknown
    if not cfg.has("layer_types"):
        return ["full" if (index + 1) % every == 0 else "linear" for index in range(layers)]
    if set(windows.kinds) - {"full", "linear"}:
        plan.unknown.append("layer_types name layers that this family does not have")
    return windows.kinds


def _qwen(cfg: Config, *, fused: bool, sparse: bool, mtp: str = "") -> Blueprint:
    has_dense = not sparse or cfg.has("intermediate_size") or "intermediate_size" in cfg.defaults
    sizes = read_sizes(cfg, hidden="intermediate_size" if has_dense else "moe_intermediate_size")
    plan = sizes.blueprint(cfg.tied(False))
    delta = _delta_layer(cfg, plan)
    dv = cfg.count("linear_value_head_dim")
    kinds = _linear_kinds(cfg, plan, sizes.layers)
    if not cfg.flag("attn_output_gate", True):
        plan.unknown.append("attention without an output gate is not understood in this family")
    mixers = {
        "full": _gated_rows(sizes, cfg.flag("attention_bias", False)),
        "linear": _delta_rows(delta, sizes.dim, dv, fused=fused),
    }
    feed_forwards = _feed_forwards(cfg, sizes, sparse)
    full = sizes.layer(cfg)
    plan.mtp_layers = (full,) * ((cfg.number(mtp, least=0) or 0) if mtp else 0)
    cfg.raw("mtp_use_dedicated_embeddings")
    if plan.mtp_layers:
        plan.mtp_unknown.append("weights of the MTP layers were compared with nothing: not counted")
    if cfg.faults or plan.unknown:
        return plan
    plan.layers = tuple(full if kind == "full" else delta for kind in kinds)
    dim = sizes.dim
    layers = [
        [*norm("input_layernorm", dim), *mixers[kind], *feed_forward, *norm("post_attention_layernorm", dim)]
        for kind, feed_forward in zip(kinds, feed_forwards, strict=True)
    ]
    plan.rows = whole(dim, sizes.vocab, plan.tied, layers)
    return plan


def _feed_forwards(cfg: Config, sizes: Sizes, sparse: bool) -> list[list[Row]]:
    dense = swiglu(sizes.dim, sizes.hidden)
    if not sparse:
        return [dense] * sizes.layers
    routed = qwen_experts(cfg, sizes.dim, shared=True)
    return [routed if has else dense for has in sparse_layers(cfg, sizes.layers)]


def _qwen3_next(cfg: Config) -> Blueprint:
    return _qwen(cfg, fused=True, sparse=True)


def _qwen3_5(cfg: Config) -> Blueprint:
    return _qwen(cfg, fused=False, sparse=False, mtp="mtp_num_hidden_layers")


def _qwen3_5_moe(cfg: Config) -> Blueprint:
    return _qwen(cfg, fused=False, sparse=True, mtp="mtp_num_hidden_layers")


def _kimi_linear(cfg: Config) -> Blueprint:
    dim, hidden, count = cfg.count("hidden_size"), cfg.count("intermediate_size"), cfg.count("num_hidden_layers")
    vocab = cfg.count("vocab_size")
    latents = read_latents(cfg, dim)
    cfg.raw("num_key_value_heads"), cfg.raw("head_dim")
    plan = Blueprint(
        dim=dim, hidden_dim=hidden, n_layers=count, n_heads=latents.heads, n_kv_heads=1,
        head_dim=latents.kv_rank + latents.rope, vocab_size=vocab, tied=cfg.tied(False),
    )  # fmt: skip
    kinds, delta, kda_rows = _kimi_mixers(cfg, plan, dim, count)
    feed_forwards = _kimi_feed_forwards(cfg, dim, hidden, count)
    if cfg.faults or plan.unknown:
        return plan
    full = latent_layer(cfg, latents)
    plan.layers = tuple(full if kind == "full" else delta for kind in kinds)
    mixers = {"full": latent_rows(latents), "linear": kda_rows}
    layers = [
        [*norm("input_layernorm", dim), *mixers[kind], *feed_forward, *norm("post_attention_layernorm", dim)]
        for kind, feed_forward in zip(kinds, feed_forwards, strict=True)
    ]
    plan.rows = whole(dim, vocab, plan.tied, layers)
    return plan


def _kimi_mixers(cfg: Config, plan: Blueprint, dim: int, layers: int) -> tuple[list[str], CacheLayer, list[Row]]:
    """Kinds by layer, the cache of a KDA layer and its tensors, from `linear_attn_config`."""
    given = cfg.raw("linear_attn_config")
    if not isinstance(given, dict):
        cfg.fault("linear_attn_config", "is missing or no object; give the config as it is published")
        given = {}
    inner = Config({"linear_attn_config": given}, "", cfg.source, within="linear_attn_config")
    heads, width = inner.count("num_heads"), inner.count("head_dim")
    kernel = inner.count("short_conv_kernel_size", 4)
    full, linear_layers = inner.numbers("full_attn_layers", least=1), inner.numbers("kda_layers", least=1)
    cfg.faults += [(cfg.path(field), words) for field, words in inner.faults]
    kinds = ["full"] * layers
    # Layer numbers in these configs start at 1.
    if full is None or linear_layers is None or sorted([*full, *linear_layers]) != list(range(1, layers + 1)):
        plan.unknown.append("linear_attn_config does not say of every layer, once, what it is")
    else:
        for number in linear_layers:
            kinds[number - 1] = "linear"
    names = (("n", "num_heads"), ("d", "head_dim"), ("kc", "short_conv_kernel_size"))
    cache = CacheLayer(
        kind="kda", state_heads=heads, state_unit=width * width, conv_columns=kernel - 1,
        conv_channels=3 * heads * width, state_dtype=state_dtype(cfg, plan),
        sources=tuple((symbol, cfg.path(f"linear_attn_config.{name}")) for symbol, name in names),
    )  # fmt: skip
    return kinds, cache, _kda_rows(dim, heads, width, kernel)


def _kda_rows(dim: int, heads: int, width: int, kernel: int) -> list[Row]:
    name, inner = "self_attn", heads * width
    rows = [row for which in ("q", "k", "v") for row in linear(f"{name}.{which}_proj", inner, dim)]
    rows += [(f"{name}.{which}_conv1d.weight", (inner, 1, kernel), "recurrent", 1) for which in ("q", "k", "v")]
    rows += linear(f"{name}.f_a_proj", width, dim) + linear(f"{name}.f_b_proj", inner, width)
    rows += [(f"{name}.dt_bias", (inner,), "recurrent", 1), (f"{name}.A_log", (1, 1, heads, 1), "recurrent", 1)]
    rows += linear(f"{name}.b_proj", heads, dim)
    rows += linear(f"{name}.g_a_proj", width, dim) + linear(f"{name}.g_b_proj", inner, width)
    return rows + norm(f"{name}.o_norm", width) + linear(f"{name}.o_proj", dim, inner)


def _kimi_feed_forwards(cfg: Config, dim: int, hidden: int, layers: int) -> list[list[Row]]:
    count, width = cfg.count("num_experts"), cfg.count("moe_intermediate_size")
    shared = (cfg.number("num_shared_experts", least=0) or 0) * width
    first = cfg.count("first_k_dense_replace", 1, least=0)
    cfg.raw("moe_renormalize"), cfg.raw("moe_router_activation_func"), cfg.raw("num_expert_group")
    name = "block_sparse_moe"
    sparse = router(f"{name}.gate", dim, count, correction=True)
    sparse += experts(dim, width, count, name=f"{name}.experts", matrices=("w1", "w3", "w2"))
    sparse += swiglu(dim, shared, name=f"{name}.shared_experts") if shared else []
    dense = swiglu(dim, hidden)
    return [dense if index < first else sparse for index in range(layers)]


def _kimi_k3(cfg: Config) -> Blueprint:
    """The caches of Kimi Linear; its experts work in a latent that was never counted, so its weights stay unknown."""
    plan = _kimi_linear(cfg)
    for name in ("routed_expert_hidden_size", "latent_moe_use_norm", "mla_use_output_gate", "mla_use_nope"):
        cfg.raw(name)
    plan.rows = None
    return plan


_CONFIGS = "published configs and totals"
_LIBRARY = "the library's count of small configs"

FAMILIES: tuple[Family, ...] = (
    Family(
        model_type="qwen3_next", architectures=("Qwen3NextForCausalLM",), build=_qwen3_next, checked=_CONFIGS,
        kinds="gated-deltanet, full", defaults={"head_dim": 256},
    ),
    Family(
        model_type="qwen3_5_text", architectures=("Qwen3_5ForCausalLM",), build=_qwen3_5, checked=_LIBRARY,
        kinds="gated-deltanet, full", defaults={"head_dim": 256},
    ),
    Family(
        model_type="qwen3_5_moe_text", architectures=("Qwen3_5MoeForCausalLM",), build=_qwen3_5_moe, checked=_CONFIGS,
        kinds="gated-deltanet, full", defaults={"head_dim": 256},
    ),
    Family(
        model_type="kimi_linear", architectures=("KimiLinearForCausalLM",), build=_kimi_linear, checked=_LIBRARY,
        kinds="kda, mla", words="layer numbers in the config start at 1",
        defaults={"max_position_embeddings": 1048576},
    ),
    Family(
        model_type="kimi_k3", architectures=("KimiK3ForCausalLM",), build=_kimi_k3,
        checked="caches: the library's layer kinds; parameters: nothing", kinds="kda, mla", compared=(),
        words="parameters were never checked: unknown", defaults={"max_position_embeddings": 1048576},
    ),
)  # fmt: skip
