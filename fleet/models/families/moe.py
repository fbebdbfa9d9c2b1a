"""Decoders with routed experts and plain K and V: they differ in names, shared experts, routers and dense layers."""

from __future__ import annotations

from fleet.models.blueprint import Blueprint, Family, Row, attention, experts, linear, norm, swiglu, whole
from fleet.models.config import Config
from fleet.models.families.dense import qk_norms
from fleet.models.layers import CacheLayer
from fleet.models.sizes import Sizes, Windows, attention_layers, read_sizes, read_windows

W_MATRICES = ("w1", "w3", "w2")


def router(name: str, dim: int, count: int, *, correction: bool = False) -> list[Row]:
    """The matrix that chooses experts; with `correction` the bias that balances them (fp32 in checkpoints)."""
    rows: list[Row] = [(f"{name}.weight", (count, dim), "router", 1)]
    if correction:
        rows.append((f"{name}.e_score_correction_bias", (count,), "buffer", 1))
    return rows


def finish(cfg: Config, plan: Blueprint, sizes: Sizes, windows: Windows, layers: list[list[Row]]) -> Blueprint:
    """Puts layers and rows in the plan unless something was wrong or unclear."""
    plan.unknown += windows.unknown
    if set(windows.kinds) - {"full", "sliding"}:
        plan.unknown.append("layer_types name layers that this family does not have")
    if not cfg.faults and not plan.unknown:
        plan.layers = attention_layers(cfg, sizes, windows)
        plan.rows = whole(sizes.dim, sizes.vocab, plan.tied, layers)
    return plan


def _pre(dim: int, attention_rows: list[Row], feed_forward: list[Row]) -> list[Row]:
    return [
        *norm("input_layernorm", dim),
        *attention_rows,
        *feed_forward,
        *norm("post_attention_layernorm", dim),
    ]


def _mixtral(cfg: Config) -> Blueprint:
    sizes = read_sizes(cfg)
    count = cfg.count("num_local_experts")
    plan = sizes.blueprint(cfg.tied(False))
    name = "block_sparse_moe"
    feed_forward = router(f"{name}.gate", sizes.dim, count)
    feed_forward += experts(sizes.dim, sizes.hidden, count, name=f"{name}.experts", matrices=W_MATRICES)
    layer = _pre(sizes.dim, attention(sizes.dim, sizes.q, sizes.kv, sizes.kv), feed_forward)
    return finish(cfg, plan, sizes, read_windows(cfg, "all", sizes.layers), [layer] * sizes.layers)


def sparse_layers(cfg: Config, layers: int) -> list[bool]:
    """Which layers have experts: every `decoder_sparse_step`-th but those of `mlp_only_layers`."""
    step = cfg.count("decoder_sparse_step", 1)
    dense = set(cfg.numbers("mlp_only_layers") or ())
    return [index not in dense and (index + 1) % step == 0 for index in range(layers)]


def qwen_experts(cfg: Config, dim: int, *, shared: bool) -> list[Row]:
    """Qwen's router and experts, with one gated shared expert where the family has it."""
    count, width = cfg.count("num_experts"), cfg.count("moe_intermediate_size")
    rows = router("mlp.gate", dim, count) + experts(dim, width, count)
    if shared:
        rows += swiglu(dim, cfg.count("shared_expert_intermediate_size"), name="mlp.shared_expert")
        rows.append(("mlp.shared_expert_gate.weight", (1, dim), "router", 1))
    return rows


def _qwen(cfg: Config, *, shared: bool, qk_norm: str | None) -> Blueprint:
    sizes = read_sizes(cfg)
    plan = sizes.blueprint(cfg.tied(False))
    bias = cfg.flag("qkv_bias", True) if shared else cfg.flag("attention_bias", False)
    rows = attention(sizes.dim, sizes.q, sizes.kv, sizes.kv, qkv_bias=bias, o_bias=bias and not shared)
    rows += qk_norms(qk_norm, sizes)
    sparse = _pre(sizes.dim, rows, qwen_experts(cfg, sizes.dim, shared=shared))
    dense = _pre(sizes.dim, rows, swiglu(sizes.dim, sizes.hidden))
    layers = [sparse if has else dense for has in sparse_layers(cfg, sizes.layers)]
    windows = read_windows(cfg, "switch", sizes.layers)
    if not shared and windows.window is not None and not cfg.has("layer_types"):
        plan.unknown.append("use_sliding_window true: readers disagree on which layers have the window in this family")
    return finish(cfg, plan, sizes, windows, layers)


def _qwen2_moe(cfg: Config) -> Blueprint:
    return _qwen(cfg, shared=True, qk_norm=None)


def _qwen3_moe(cfg: Config) -> Blueprint:
    return _qwen(cfg, shared=False, qk_norm="head")


def _granite_moe(cfg: Config) -> Blueprint:
    sizes = read_sizes(cfg)
    count = cfg.count("num_local_experts")
    shared = cfg.number("shared_intermediate_size", least=0) or 0
    plan = sizes.blueprint(cfg.tied(False))
    bias = cfg.flag("attention_bias", False)
    rows = attention(sizes.dim, sizes.q, sizes.kv, sizes.kv, qkv_bias=bias, o_bias=bias)
    layer = _pre(sizes.dim, rows, granite_experts(sizes.dim, sizes.hidden, count, shared))
    return finish(cfg, plan, sizes, read_windows(cfg, "none", sizes.layers), [layer] * sizes.layers)


def granite_experts(dim: int, hidden: int, count: int, shared: int) -> list[Row]:
    """Granite stacks its experts: two tensors, gate and up in one. No experts: the shared part alone."""
    rows: list[Row] = []
    if count:
        rows += [
            ("block_sparse_moe.input_linear.weight", (count, 2 * hidden, dim), "projection", 1),
            ("block_sparse_moe.output_linear.weight", (count, dim, hidden), "projection", 1),
            ("block_sparse_moe.router.layer.weight", (count, dim), "router", 1),
        ]
    if shared:
        rows += linear("shared_mlp.input_linear", 2 * shared, dim) + linear("shared_mlp.output_linear", dim, shared)
    return rows


def _olmoe(cfg: Config) -> Blueprint:
    sizes = read_sizes(cfg)
    count = cfg.count("num_experts")
    plan = sizes.blueprint(cfg.tied(False))
    bias = cfg.flag("attention_bias", False)
    rows = attention(sizes.dim, sizes.q, sizes.kv, sizes.kv, qkv_bias=bias, o_bias=bias) + qk_norms("full", sizes)
    feed_forward = router("mlp.gate", sizes.dim, count) + experts(sizes.dim, sizes.hidden, count)
    layer = _pre(sizes.dim, rows, feed_forward)
    return finish(cfg, plan, sizes, read_windows(cfg, "none", sizes.layers), [layer] * sizes.layers)


def _minimax_m2(cfg: Config) -> Blueprint:
    sizes = read_sizes(cfg)
    count = cfg.count("num_local_experts")
    plan = sizes.blueprint(cfg.tied(False))
    if cfg.flag("use_qk_norm", True) is False or cfg.raw("qk_norm_type") not in (None, "per_layer"):
        plan.unknown.append("norms of queries and keys are not those of this family")
    if cfg.number("shared_intermediate_size", least=0):
        plan.unknown.append("a shared expert is not understood in this family")
    rows = attention(sizes.dim, sizes.q, sizes.kv, sizes.kv) + qk_norms("full", sizes)
    name = "block_sparse_moe"
    feed_forward: list[Row] = [
        (f"{name}.gate.weight", (count, sizes.dim), "router", 1),
        (f"{name}.e_score_correction_bias", (count,), "buffer", 1),
        *experts(sizes.dim, sizes.hidden, count, name=f"{name}.experts", matrices=W_MATRICES),
    ]
    layer = _pre(sizes.dim, rows, feed_forward)
    _plain_mtp(plan, sizes.layer(cfg), _minimax_mtp(cfg))
    return finish(cfg, plan, sizes, read_windows(cfg, "none", sizes.layers), [layer] * sizes.layers)


def _minimax_mtp(cfg: Config) -> int:
    per_module = cfg.number("mtp_transformer_layers", least=0) or 0
    modules = cfg.number("num_mtp_modules", least=0) or 0
    return per_module * modules if cfg.flag("use_mtp", False) else 0


def _plain_mtp(plan: Blueprint, layer: CacheLayer, count: int) -> None:
    """MTP layers whose caches are known and whose weights were compared with nothing."""
    plan.mtp_layers = (layer,) * count
    if count:
        plan.mtp_unknown.append("weights of the MTP layers were compared with nothing: not counted")


def _gpt_oss(cfg: Config) -> Blueprint:
    sizes = read_sizes(cfg)
    count = cfg.count("num_local_experts")
    plan = sizes.blueprint(cfg.tied(False))
    bias = cfg.flag("attention_bias", True)
    rows = attention(sizes.dim, sizes.q, sizes.kv, sizes.kv, qkv_bias=bias, o_bias=bias)
    rows.append(("self_attn.sinks", (sizes.heads,), "bias", 1))
    dim, hidden, name = sizes.dim, sizes.hidden, "mlp.experts"
    feed_forward: list[Row] = [
        ("mlp.router.weight", (count, dim), "router", 1),
        ("mlp.router.bias", (count,), "bias", 1),
        (f"{name}.gate_up_proj", (count, dim, 2 * hidden), "projection", 1),
        (f"{name}.gate_up_proj_bias", (count, 2 * hidden), "bias", 1),
        (f"{name}.down_proj", (count, hidden, dim), "projection", 1),
        (f"{name}.down_proj_bias", (count, dim), "bias", 1),
    ]
    layer = _pre(dim, rows, feed_forward)
    windows = read_windows(cfg, "pattern", sizes.layers, full_every=2)
    return finish(cfg, plan, sizes, windows, [layer] * sizes.layers)


def _glm4_moe(cfg: Config) -> Blueprint:
    sizes = read_sizes(cfg)
    dim, count, width = sizes.dim, cfg.count("n_routed_experts"), cfg.count("moe_intermediate_size")
    shared = (cfg.number("n_shared_experts", least=0) or 0) * width
    first_sparse = cfg.count("first_k_dense_replace", 1, least=0)
    plan = sizes.blueprint(cfg.tied(False))
    rows = attention(dim, sizes.q, sizes.kv, sizes.kv, qkv_bias=cfg.flag("attention_bias", False))
    rows += qk_norms("head" if cfg.flag("use_qk_norm", False) else None, sizes)
    feed_forward = router("mlp.gate", dim, count, correction=True) + experts(dim, width, count)
    feed_forward += swiglu(dim, shared, name="mlp.shared_experts") if shared else []
    sparse = _pre(dim, rows, feed_forward)
    dense = _pre(dim, rows, swiglu(dim, sizes.hidden))
    layers = [dense if index < first_sparse else sparse for index in range(sizes.layers)]
    _plain_mtp(plan, sizes.layer(cfg), cfg.number("num_nextn_predict_layers", least=0) or 0)
    return finish(cfg, plan, sizes, read_windows(cfg, "none", sizes.layers), layers)


def _llama4(cfg: Config) -> Blueprint:
    sizes = read_sizes(cfg)
    plan = sizes.blueprint(cfg.tied(False))
    cfg.raw("use_qk_norm")  # a norm without weights
    bias = cfg.flag("attention_bias", False)
    rows = attention(sizes.dim, sizes.q, sizes.kv, sizes.kv, qkv_bias=bias, o_bias=bias)
    sparse, dense = _llama4_feed_forwards(cfg, sizes)
    has_experts = _llama4_sparse(cfg, sizes.layers)
    layers = [_pre(sizes.dim, rows, sparse if has else dense) for has in has_experts]
    kinds, chunk = _llama4_kinds(cfg, plan, sizes.layers)
    if cfg.faults or plan.unknown:
        return plan
    full = sizes.layer(cfg)
    chunked = sizes.layer(cfg, "chunked", chunk, "attention_chunk_size")
    plan.layers = tuple(chunked if kind == "chunked" else full for kind in kinds)
    plan.rows = whole(sizes.dim, sizes.vocab, plan.tied, layers)
    return plan


def _llama4_feed_forwards(cfg: Config, sizes: Sizes) -> tuple[list[Row], list[Row]]:
    """Experts stacked in two tensors beside a shared expert; and the dense layer between them."""
    dim, hidden, count = sizes.dim, sizes.hidden, cfg.count("num_local_experts")
    name = "feed_forward"
    sparse: list[Row] = [
        (f"{name}.experts.gate_up_proj", (count, dim, 2 * hidden), "projection", 1),
        (f"{name}.experts.down_proj", (count, hidden, dim), "projection", 1),
        *router(f"{name}.router", dim, count),
        *swiglu(dim, hidden, name=f"{name}.shared_expert"),
    ]
    return sparse, swiglu(dim, cfg.count("intermediate_size_mlp"), name=name)


def _llama4_sparse(cfg: Config, layers: int) -> list[bool]:
    listed = cfg.numbers("moe_layers")
    step = cfg.count("interleave_moe_layer_step", 1)
    if listed:
        return [index in set(listed) for index in range(layers)]
    return [(index + 1) % step == 0 for index in range(layers)]


def _llama4_kinds(cfg: Config, plan: Blueprint, layers: int) -> tuple[list[str], int]:
    """`chunked` for layers with RoPE, `full` for those without: listed, or every fourth."""
    chunk = cfg.number("attention_chunk_size")
    if "attention_chunk_size" not in cfg.document:
        chunk = cfg.count("attention_chunk_size")
    rope = cfg.numbers("no_rope_layers")
    every = cfg.count("no_rope_layer_interval", 4)
    if rope and len(rope) != layers:
        cfg.fault("no_rope_layers", f"lists {len(rope):,} layers, num_hidden_layers says {layers:,}; correct one")
        rope = None
    listed = cfg.words("layer_types", layers)
    if not rope:
        rope = [int((index + 1) % every != 0) for index in range(layers)]
    kinds = ["chunked" if has and chunk else "full" for has in rope]
    if listed is not None:
        words = {"chunked_attention": "chunked", "full_attention": "full"}
        if {word for word in listed if word not in words}:
            plan.unknown.append("layer_types name layers that this family does not have")
        kinds = [words.get(word, "full") for word in listed]
    return kinds, chunk or 1


def _mimo_v2(cfg: Config) -> Blueprint:
    """MiMo-V2-Flash: K wider than V; full and window layers differ in heads; sinks in the window layers."""
    sizes = read_sizes(cfg)
    dim, layers = sizes.dim, sizes.layers
    plan = sizes.blueprint(cfg.tied(False))
    windows = _mimo_kinds(cfg, plan, layers)
    count, width = cfg.count("n_routed_experts"), cfg.count("moe_intermediate_size")
    feed_forward = router("mlp.gate", dim, count, correction=True) + experts(dim, width, count)
    if cfg.number("n_shared_experts", least=0):
        plan.unknown.append("a shared expert is not understood in this family")
    sparse = _mimo_sparse(cfg, layers)
    by_kind = {kind: _mimo_attention(cfg, plan, dim, kind, windows[1]) for kind in dict.fromkeys(windows[0])}
    if cfg.faults or plan.unknown:
        return plan
    plan.layers = tuple(by_kind[kind][0] for kind in windows[0])
    rows = [
        _pre(dim, by_kind[kind][1], feed_forward if has else swiglu(dim, sizes.hidden))
        for kind, has in zip(windows[0], sparse, strict=True)
    ]
    plan.rows = whole(dim, sizes.vocab, plan.tied, rows)
    return plan


def _mimo_kinds(cfg: Config, plan: Blueprint, layers: int) -> tuple[list[str], int]:
    window = cfg.number("sliding_window") or 1
    cfg.raw("sliding_window_size")
    cfg.raw("attention_chunk_size")
    pattern = cfg.numbers("hybrid_layer_pattern")
    listed = cfg.words("layer_types", layers)
    if pattern is not None and len(pattern) == layers:
        return ["sliding" if mark else "full" for mark in pattern], window
    if listed is not None and set(listed) <= {"full_attention", "sliding_attention"}:
        return [word.removesuffix("_attention") for word in listed], window
    plan.unknown.append("neither hybrid_layer_pattern nor layer_types says which layers have a window")
    return ["full"] * layers, window


def _mimo_sparse(cfg: Config, layers: int) -> list[bool]:
    marks = cfg.numbers("moe_layer_freq")
    if marks is None or len(marks) != layers:
        return [index > 0 for index in range(layers)]
    return [bool(mark) for mark in marks]


def _mimo_attention(cfg: Config, plan: Blueprint, dim: int, kind: str, window: int) -> tuple[CacheLayer, list[Row]]:
    prefix = "swa_" if kind == "sliding" else ""
    fields = {
        name: f"{prefix}{name}" if cfg.has(f"{prefix}{name}") else name
        for name in ("num_attention_heads", "num_key_value_heads", "head_dim", "v_head_dim")
    }
    heads, kv, dk, dv = (cfg.count(field) for field in fields.values())
    if prefix and not cfg.has("swa_num_key_value_heads"):
        kv *= 2  # the library's rule for window layers
    bias = cfg.flag("attention_bias", False)
    rows = attention(dim, heads * dk, kv * dk, kv * dv, o_in=heads * dv, qkv_bias=bias)
    if cfg.flag(f"add_{'swa' if prefix else 'full'}_attention_sink_bias", kind == "sliding"):
        if kind == "full":
            plan.unknown.append("add_full_attention_sink_bias true: readers of it disagree")
        rows.append(("self_attn.attention_sink_bias", (heads,), "bias", 1))
    names = (("nk", fields["num_key_value_heads"]), ("dk", fields["head_dim"]), ("dv", fields["v_head_dim"]))
    sources = tuple((symbol, cfg.path(field)) for symbol, field in names)
    if kind == "sliding":
        sources = (*sources, ("W", cfg.path("sliding_window")))
    layer = CacheLayer(
        kind=kind, heads=kv, key_dim=dk, value_dim=dv, window=window if kind == "sliding" else None, sources=sources
    )
    return layer, rows


_CONFIGS = "published configs and totals"
_LIBRARY = "the library's count of small configs"

FAMILIES: tuple[Family, ...] = (
    Family(
        model_type="mixtral", architectures=("MixtralForCausalLM",), build=_mixtral, checked=_CONFIGS,
        kinds="full, sliding",
    ),
    Family(
        model_type="qwen2_moe", architectures=("Qwen2MoeForCausalLM",), build=_qwen2_moe, checked=_LIBRARY,
        kinds="full",
    ),
    Family(
        model_type="qwen3_moe", architectures=("Qwen3MoeForCausalLM",), build=_qwen3_moe, checked=_CONFIGS,
        kinds="full",
    ),
    Family(
        model_type="qwen3_vl_moe_text", architectures=("Qwen3VLMoeForCausalLM",), build=_qwen3_moe, checked=_LIBRARY,
        kinds="full",
    ),
    Family(
        model_type="granitemoe", architectures=("GraniteMoeForCausalLM",), build=_granite_moe, checked=_CONFIGS,
        kinds="full",
    ),
    Family(
        model_type="granitemoeshared", architectures=("GraniteMoeSharedForCausalLM",), build=_granite_moe,
        checked=_LIBRARY, kinds="full",
    ),
    Family(model_type="olmoe", architectures=("OlmoeForCausalLM",), build=_olmoe, checked=_LIBRARY, kinds="full"),
    Family(
        model_type="minimax_m2", architectures=("MiniMaxM2ForCausalLM",), build=_minimax_m2, checked=_CONFIGS,
        kinds="full",
    ),
    Family(
        model_type="gpt_oss", architectures=("GptOssForCausalLM",), build=_gpt_oss, checked=_CONFIGS,
        kinds="sliding, full", compared=("plain", "mxfp4"), defaults={"sliding_window": 128, "head_dim": 64},
    ),
    Family(
        model_type="glm4_moe", architectures=("Glm4MoeForCausalLM",), build=_glm4_moe, checked=_CONFIGS, kinds="full",
    ),
    Family(
        model_type="llama4_text", architectures=("Llama4ForCausalLM",), build=_llama4, checked=_CONFIGS,
        kinds="chunked, full", defaults={"attention_chunk_size": 8192, "head_dim": 128},
    ),
    Family(
        model_type="mimo_v2_flash", architectures=("MiMoV2FlashForCausalLM",), build=_mimo_v2, checked=_LIBRARY,
        kinds="full, sliding", words="K 192 wide, V 128; own heads in window layers",
    ),
)  # fmt: skip
