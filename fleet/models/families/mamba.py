"""Hybrids of Mamba and attention: Mamba 1 (Jamba), Mamba 2 (Nemotron-H, Granite 4, Bamba)."""

from __future__ import annotations

from dataclasses import dataclass

from fleet.checkpoints.json_text import shorten
from fleet.models.blueprint import Blueprint, Family, Row, attention, experts, linear, norm, swiglu, whole
from fleet.models.config import Config
from fleet.models.families.hybrid import state_dtype
from fleet.models.families.moe import granite_experts, router
from fleet.models.layers import CacheLayer
from fleet.models.sizes import read_sizes

_EMPTY = CacheLayer(kind="mlp")
_EMPTY_MOE = CacheLayer(kind="moe")


@dataclass(frozen=True, kw_only=True, slots=True)
class Mamba2:
    """Heads of `width`, state of `state` columns, `groups` of B and C, kernel of the convolution, biases."""

    heads: int
    width: int
    state: int
    groups: int
    kernel: int
    conv_bias: bool
    bias: bool

    @property
    def inner(self) -> int:
        return self.heads * self.width

    @property
    def channels(self) -> int:
        return self.inner + 2 * self.groups * self.state

    def layer(self, cfg: Config, plan: Blueprint, names: tuple[tuple[str, str], ...]) -> CacheLayer:
        """The state and the convolution's window of one layer."""
        return CacheLayer(
            kind="mamba2", state_heads=self.heads, state_unit=self.width * self.state, conv_columns=self.kernel - 1,
            conv_channels=self.inner, conv_groups=self.groups, conv_group_dim=2 * self.state,
            state_dtype=state_dtype(cfg, plan), sources=tuple((symbol, cfg.path(name)) for symbol, name in names),
        )  # fmt: skip

    def rows(self, dim: int, name: str) -> list[Row]:
        """The tensors of one mixer."""
        rows = linear(f"{name}.in_proj", self.inner + self.channels + self.heads, dim, self.bias)
        rows.append((f"{name}.conv1d.weight", (self.channels, 1, self.kernel), "recurrent", 1))
        if self.conv_bias:
            rows.append((f"{name}.conv1d.bias", (self.channels,), "recurrent", 1))
        rows += [(f"{name}.{vector}", (self.heads,), "recurrent", 1) for vector in ("A_log", "D", "dt_bias")]
        return rows + norm(f"{name}.norm", self.inner) + linear(f"{name}.out_proj", dim, self.inner, self.bias)


def _nemotron_h(cfg: Config) -> Blueprint:
    hidden = "intermediate_size" if cfg.has("intermediate_size") else "moe_intermediate_size"
    width = "attention_head_dim" if cfg.has("attention_head_dim") and not cfg.has("head_dim") else "head_dim"
    listed = cfg.words("layers_block_type")
    sizes = read_sizes(cfg, hidden=hidden, width=width, layers=len(listed) if listed else None)
    plan = sizes.blueprint(cfg.tied(False))
    marks = _pattern(cfg, plan, sizes.layers)
    if "-" in marks and hidden != "intermediate_size" and not plan.unknown:
        cfg.fault("intermediate_size", "is missing, but hybrid_override_pattern has MLP layers; give it")
    mixer = Mamba2(
        heads=cfg.count("mamba_num_heads"), width=cfg.count("mamba_head_dim"), state=cfg.count("ssm_state_size"),
        groups=cfg.count("n_groups"), kernel=cfg.count("conv_kernel"), conv_bias=cfg.flag("use_conv_bias", True),
        bias=cfg.flag("use_bias", False),
    )  # fmt: skip
    cfg.flag("mamba_proj_bias", False)
    cfg.raw("attention_bias"), cfg.raw("sliding_window")
    names = (
        ("n", "mamba_num_heads"), ("hd", "mamba_head_dim"), ("N", "ssm_state_size"), ("g", "n_groups"),
        ("kc", "conv_kernel"),
    )  # fmt: skip
    full = sizes.layer(cfg)
    caches = {"M": mixer.layer(cfg, plan, names), "*": full, "-": _EMPTY, "E": _EMPTY_MOE}
    dim = sizes.dim
    bodies: dict[str, list[Row]] = {
        "M": mixer.rows(dim, "mixer"),
        "*": attention(dim, sizes.q, sizes.kv, sizes.kv, name="mixer"),
        "-": _two_matrices(dim, sizes.hidden, "mixer", cfg.flag("mlp_bias", False)),
        "E": _nemotron_experts(cfg, dim) if "E" in marks else [],
    }
    if cfg.faults or plan.unknown:
        return plan
    plan.layers = tuple(caches[mark] for mark in marks)
    layers = [[*norm("norm", dim), *bodies[mark]] for mark in marks]
    plan.rows = whole(
        dim, sizes.vocab, plan.tied, layers, embedding="embeddings", prefix="backbone.", norm_name="norm_f"
    )
    _nemotron_mtp(cfg, plan, full)
    return plan


def _two_matrices(dim: int, hidden: int, name: str, bias: bool = False) -> list[Row]:
    return linear(f"{name}.up_proj", hidden, dim, bias) + linear(f"{name}.down_proj", dim, hidden, bias)


def _nemotron_experts(cfg: Config, dim: int) -> list[Row]:
    """Experts of two matrices beside a shared one; Nemotron 3 Super's work in a latent."""
    count, width = cfg.count("n_routed_experts"), cfg.count("moe_intermediate_size")
    shared = cfg.count("moe_shared_expert_intermediate_size")
    number = cfg.number("n_shared_experts", least=0)
    cfg.raw("moe_shared_expert_overlap")
    latent = cfg.number("moe_latent_size")
    inside = latent or dim
    rows = router("mixer.gate", dim, count, correction=True)
    rows += experts(inside, width, count, name="mixer.experts", matrices=("up_proj", "down_proj"))
    rows += _two_matrices(dim, shared, "mixer.shared_experts") if number != 0 else []
    if latent:
        rows += linear("mixer.fc1_latent_proj", latent, dim) + linear("mixer.fc2_latent_proj", dim, latent)
    return rows


def _pattern(cfg: Config, plan: Blueprint, layers: int) -> str:
    """M state, * attention, - MLP, E experts: one mark a layer."""
    pattern = cfg.raw("hybrid_override_pattern")
    listed = cfg.words("layers_block_type")
    if pattern is None and listed is not None:
        words = {"mamba": "M", "linear_attention": "M", "attention": "*", "full_attention": "*", "mlp": "-", "moe": "E"}
        pattern = "".join(words.get(word, "?") for word in listed)
    if not isinstance(pattern, str) or set(pattern) - set("M*-E"):
        plan.unknown.append("hybrid_override_pattern is missing, or has marks other than M, *, - and E")
        return "-" * layers
    if len(pattern) != layers:
        cfg.fault("hybrid_override_pattern", f"has {len(pattern):,} marks, num_hidden_layers says {layers:,}")
        return "-" * layers
    return pattern


def _nemotron_mtp(cfg: Config, plan: Blueprint, full: CacheLayer) -> None:
    count = cfg.number("num_nextn_predict_layers", least=0) or 0
    pattern = cfg.raw("mtp_hybrid_override_pattern")
    cfg.raw("mtp_layers_block_type")
    if count:
        plan.mtp_unknown.append("weights of the MTP layers were compared with nothing: not counted")
        attentions = pattern.count("*") if isinstance(pattern, str) else 1
        plan.mtp_layers = (full,) * (count * attentions)


def _granite_hybrid(cfg: Config) -> Blueprint:
    sizes = read_sizes(cfg)
    plan = sizes.blueprint(cfg.tied(False))
    dim, layers = sizes.dim, sizes.layers
    mixer, names = _prefixed_mamba2(cfg, dim)
    count = cfg.number("num_local_experts", least=0) or 0
    bias = cfg.flag("attention_bias", False)
    feed_forward = granite_experts(dim, sizes.hidden, count, cfg.number("shared_intermediate_size", least=0) or 0)
    listed = cfg.words("layer_types", layers)
    kinds = [_GRANITE_KINDS.get(word, "?") for word in listed] if listed else ["?"]
    if "?" in kinds:
        plan.unknown.append("layer_types are missing, or name layers that this family does not have")
    bodies = {
        "mamba": mixer.rows(dim, "mamba"),
        "full": attention(dim, sizes.q, sizes.kv, sizes.kv, qkv_bias=bias, o_bias=bias),
    }
    caches = {"mamba": mixer.layer(cfg, plan, names), "full": sizes.layer(cfg)}
    if cfg.faults or plan.unknown:
        return plan
    plan.layers = tuple(caches[kind] for kind in kinds)
    rows = [
        [*norm("input_layernorm", dim), *bodies[kind], *feed_forward, *norm("post_attention_layernorm", dim)]
        for kind in kinds
    ]
    plan.rows = whole(dim, sizes.vocab, plan.tied, rows)
    return plan


_GRANITE_KINDS = {"mamba": "mamba", "linear_attention": "mamba", "attention": "full", "full_attention": "full"}


def _prefixed_mamba2(cfg: Config, dim: int) -> tuple[Mamba2, tuple[tuple[str, str], ...]]:
    """Mamba 2 with the fields of Bamba and Granite 4: `mamba_n_heads` and so on."""
    heads, expand = cfg.count("mamba_n_heads"), cfg.count("mamba_expand", 2)
    width = expand * dim // heads if cfg.raw("mamba_d_head") in (None, "auto") else cfg.count("mamba_d_head")
    if not cfg.faults and heads * width != expand * dim:
        cfg.fault("mamba_d_head", f"{width:,} times mamba_n_heads {heads:,} is not mamba_expand times hidden_size")
    mixer = Mamba2(
        heads=heads, width=width, state=cfg.count("mamba_d_state"), groups=cfg.count("mamba_n_groups"),
        kernel=cfg.count("mamba_d_conv"), conv_bias=cfg.flag("mamba_conv_bias", True),
        bias=cfg.flag("mamba_proj_bias", False),
    )  # fmt: skip
    names = (
        ("n", "mamba_n_heads"), ("hd", "mamba_d_head"), ("N", "mamba_d_state"), ("g", "mamba_n_groups"),
        ("kc", "mamba_d_conv"),
    )  # fmt: skip
    return mixer, names


def _bamba(cfg: Config) -> Blueprint:
    sizes = read_sizes(cfg)
    plan = sizes.blueprint(cfg.tied(False))
    dim = sizes.dim
    mixer, names = _prefixed_mamba2(cfg, dim)
    bias = cfg.flag("attention_bias", False)
    listed = cfg.numbers("attn_layer_indices")
    if listed is None:
        plan.unknown.append("attn_layer_indices does not say which layers have attention")
    bodies = {
        False: mixer.rows(dim, "mamba"),
        True: attention(dim, sizes.q, sizes.kv, sizes.kv, qkv_bias=bias, o_bias=bias),
    }
    caches = {False: mixer.layer(cfg, plan, names), True: sizes.layer(cfg)}
    feed_forward = swiglu(dim, sizes.hidden, name="feed_forward", bias=cfg.flag("mlp_bias", False))
    if cfg.faults or plan.unknown:
        return plan
    has_attention = [index in set(listed or ()) for index in range(sizes.layers)]
    plan.layers = tuple(caches[has] for has in has_attention)
    rows = [
        [*norm("input_layernorm", dim), *bodies[has], *feed_forward, *norm("pre_ff_layernorm", dim)]
        for has in has_attention
    ]
    plan.rows = whole(dim, sizes.vocab, plan.tied, rows, norm_name="final_layernorm")
    return plan


def _jamba(cfg: Config) -> Blueprint:
    sizes = read_sizes(cfg)
    plan = sizes.blueprint(cfg.tied(False))
    dim, layers = sizes.dim, sizes.layers
    state, kernel = cfg.count("mamba_d_state"), cfg.count("mamba_d_conv")
    inner = cfg.count("mamba_expand") * dim
    rank = -(-dim // 16) if cfg.raw("mamba_dt_rank") in (None, "auto") else cfg.count("mamba_dt_rank")
    names = (("inner", "mamba_expand * hidden_size"), ("N", "mamba_d_state"), ("kc", "mamba_d_conv"))
    mamba = CacheLayer(
        kind="mamba1", state_heads=inner, state_unit=state, conv_columns=kernel - 1, conv_channels=inner,
        state_dtype=state_dtype(cfg, plan), sources=tuple((symbol, cfg.path(name)) for symbol, name in names),
    )  # fmt: skip
    mixer = _mamba1_rows(
        dim, inner, state, kernel, rank, cfg.flag("mamba_conv_bias", True), cfg.flag("mamba_proj_bias")
    )
    attends = _periodic(cfg, layers, "attn_layer_period", "attn_layer_offset")
    count = cfg.count("num_experts")
    routed = _periodic(cfg, layers, "expert_layer_period", "expert_layer_offset")
    if cfg.faults:
        return plan
    full = sizes.layer(cfg)
    plan.layers = tuple(full if has else mamba for has in attends)
    rows = attention(dim, sizes.q, sizes.kv, sizes.kv)
    name = "feed_forward"
    sparse = [
        (f"{name}.router.weight", (count, dim), "router", 1),
        *experts(dim, sizes.hidden, count, name=f"{name}.experts"),
    ]
    dense = swiglu(dim, sizes.hidden, name=name)
    bodies = [
        [
            *norm("input_layernorm", dim),
            *(rows if has else mixer),
            *(sparse if is_sparse and count > 1 else dense),
            *norm("pre_ff_layernorm", dim),
        ]
        for has, is_sparse in zip(attends, routed, strict=True)
    ]
    plan.rows = whole(dim, sizes.vocab, plan.tied, bodies, norm_name="final_layernorm")
    return plan


def _periodic(cfg: Config, layers: int, period: str, offset: str) -> list[bool]:
    every, first = cfg.count(period), cfg.count(offset, least=0)
    if not cfg.faults and first >= every:
        cfg.fault(offset, f"is {shorten(first)}: must be below {period} {every:,}")
    return [index % every == first for index in range(layers)]


def _mamba1_rows(dim: int, inner: int, state: int, kernel: int, rank: int, conv_bias: bool, bias: bool) -> list[Row]:
    name = "mamba"
    rows = linear(f"{name}.in_proj", 2 * inner, dim, bias)
    rows.append((f"{name}.conv1d.weight", (inner, 1, kernel), "recurrent", 1))
    if conv_bias:
        rows.append((f"{name}.conv1d.bias", (inner,), "recurrent", 1))
    rows += linear(f"{name}.x_proj", rank + 2 * state, inner) + linear(f"{name}.dt_proj", inner, rank, True)
    rows += [(f"{name}.A_log", (inner, state), "recurrent", 1), (f"{name}.D", (inner,), "recurrent", 1)]
    rows += linear(f"{name}.out_proj", dim, inner, bias)
    return (
        rows
        + norm(f"{name}.dt_layernorm", rank)
        + norm(f"{name}.b_layernorm", state)
        + norm(f"{name}.c_layernorm", state)
    )


_CONFIGS = "published configs and totals"
_LIBRARY = "the library's count of small configs"

FAMILIES: tuple[Family, ...] = (
    Family(
        model_type="nemotron_h", architectures=("NemotronHForCausalLM",), build=_nemotron_h, checked=_CONFIGS,
        kinds="mamba2, full, mlp, moe", defaults={"head_dim": 128, "num_key_value_heads": 8},
    ),
    Family(
        model_type="granitemoehybrid", architectures=("GraniteMoeHybridForCausalLM",), build=_granite_hybrid,
        checked=_LIBRARY, kinds="mamba2, full",
    ),
    Family(
        model_type="bamba", architectures=("BambaForCausalLM",), build=_bamba, checked=_LIBRARY, kinds="mamba2, full",
    ),
    Family(
        model_type="jamba", architectures=("JambaForCausalLM",), build=_jamba, checked=_CONFIGS, kinds="mamba1, full",
    ),
)  # fmt: skip
