"""Step 3.7: caches by `layer_types`, window layers with heads of their own; its parameters were never checked."""

from __future__ import annotations

from fleet.models.blueprint import Blueprint, Family
from fleet.models.config import Config
from fleet.models.layers import CacheLayer
from fleet.models.sizes import read_sizes, window_of


def _step(cfg: Config) -> Blueprint:
    """Published configs list the MTP layers behind the others: only the first num_hidden_layers words count."""
    if not cfg.has("num_key_value_heads") and cfg.has("num_attention_groups"):
        field = "num_attention_groups"
    else:
        field = "num_key_value_heads"
    sizes = read_sizes(cfg, kv=field)
    plan = sizes.blueprint(cfg.tied(False))
    window = window_of(cfg)
    listed = cfg.words("layer_types")
    known = {"full_attention", "sliding_attention"}
    if listed is None or len(listed) < sizes.layers or set(listed) - known or window is None:
        plan.unknown.append("layer_types and sliding_window do not say what each layer keeps")
    for name in ("num_experts", "moe_intermediate_size", "share_expert_dim", "use_moe_router_bias", "n_shared_experts"):
        cfg.raw(name)
    for name in ("moe_num_experts", "moe_top_k", "moe_layers_enum", "n_routed_experts", "moe_router_activation"):
        cfg.raw(name)
    full = sizes.layer(cfg)
    sliding = _sliding(cfg, plan, full, window or 1)
    mtp = cfg.number("num_nextn_predict_layers", least=0) or 0
    if cfg.faults or plan.unknown or listed is None:
        return plan
    plan.layers = tuple(full if word == "full_attention" else sliding for word in listed[: sizes.layers])
    if mtp:
        plan.mtp_unknown.append("the MTP layers of this family were compared with nothing: not counted")
    return plan


def _sliding(cfg: Config, plan: Blueprint, full: CacheLayer, window: int) -> CacheLayer:
    """A window layer: the KV heads of `attention_other_setting` where that is given."""
    other = cfg.raw("attention_other_setting")
    heads, field = full.heads, dict(full.sources)["nk"]
    if other is not None:
        given = other.get("num_attention_groups") if isinstance(other, dict) else None
        if not isinstance(given, int) or isinstance(given, bool) or not 1 <= given <= 1 << 14:
            plan.unknown.append("attention_other_setting is not understood")
        else:
            heads, field = given, cfg.path("attention_other_setting.num_attention_groups")
    sources = (("nk", field), *full.sources[1:], ("W", cfg.path("sliding_window")))
    return CacheLayer(
        kind="sliding", heads=heads, key_dim=full.key_dim, value_dim=full.value_dim, window=window, sources=sources
    )


FAMILIES: tuple[Family, ...] = tuple(
    Family(
        model_type=model_type, architectures=("Step3p7FlashForCausalLM", "Step3p5ForCausalLM"), build=_step,
        checked="caches: the formula alone; parameters: nothing", kinds="full, sliding", compared=(),
        words="parameters were never checked: unknown",
    )
    for model_type in ("step3p7", "step3p5")
)  # fmt: skip
