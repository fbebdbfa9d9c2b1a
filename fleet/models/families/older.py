"""Falcon and the first Qwen, whose fields have names of their own; and Nemotron-NAS, searched block by block."""

from __future__ import annotations

from typing import Any

from fleet.models.blueprint import Blueprint, Family, Row, attention, linear, norm, swiglu, whole
from fleet.models.config import Config
from fleet.models.layers import CacheLayer
from fleet.models.sizes import read_sizes


def _falcon(cfg: Config) -> Blueprint:
    """`multi_query` counts only without `new_decoder_architecture`; then `num_kv_heads` does."""
    dim, heads, layers = cfg.count("hidden_size"), cfg.count("num_attention_heads"), cfg.count("num_hidden_layers")
    vocab, hidden = cfg.count("vocab_size"), cfg.count("ffn_hidden_size", 4 * cfg.count("hidden_size"))
    is_new, is_single = cfg.flag("new_decoder_architecture", False), cfg.flag("multi_query", True)
    parallel, bias = cfg.flag("parallel_attn", True), cfg.flag("bias", False)
    given = cfg.number("num_kv_heads")
    kv = (given or heads) if is_new or not is_single else 1
    field = ("num_kv_heads" if given else "num_attention_heads") if is_new or not is_single else "multi_query"
    norms = cfg.number("num_ln_in_parallel_attn") or (2 if is_new else 1)
    if not cfg.faults and (dim % heads or heads % kv):
        cfg.fault("num_attention_heads", f"{heads:,} does not divide hidden_size {dim:,}, or is no multiple of {kv:,}")
    plan = Blueprint(
        dim=dim, hidden_dim=hidden, n_layers=layers, n_heads=heads, n_kv_heads=kv, head_dim=dim // heads,
        vocab_size=vocab, tied=cfg.tied(True),
    )  # fmt: skip
    if cfg.flag("alibi", False):
        cfg.raw("alibi")
    if cfg.faults:
        return plan
    width = dim // heads
    rows = _falcon_norms(dim, parallel, norms)
    rows += linear("self_attention.query_key_value", (heads + 2 * kv) * width, dim, bias)
    rows += linear("self_attention.dense", dim, dim, bias)
    rows += linear("mlp.dense_h_to_4h", hidden, dim, bias) + linear("mlp.dense_4h_to_h", dim, hidden, bias)
    names = (("nk", field), ("dk", "hidden_size / num_attention_heads"), ("dv", "hidden_size / num_attention_heads"))
    layer = CacheLayer(
        kind="full", heads=kv, key_dim=width, value_dim=width,
        sources=tuple((symbol, cfg.path(name)) for symbol, name in names),
    )  # fmt: skip
    plan.layers = (layer,) * layers
    final = norm("transformer.ln_f", dim, True)
    plan.rows = whole(
        dim, vocab, plan.tied, [rows] * layers, final=final, embedding="word_embeddings", prefix="transformer.",
        inside="h",
    )  # fmt: skip
    return plan


def _falcon_norms(dim: int, parallel: bool, norms: int) -> list[Row]:
    if not parallel:
        return norm("post_attention_layernorm", dim, True) + norm("input_layernorm", dim, True)
    if norms == 2:
        return norm("ln_attn", dim, True) + norm("ln_mlp", dim, True)
    return norm("input_layernorm", dim, True)


def _qwen1(cfg: Config) -> Blueprint:
    """The first Qwen: multi-head, `intermediate_size` holds gate and up together."""
    dim, heads, layers = cfg.count("hidden_size"), cfg.count("num_attention_heads"), cfg.count("num_hidden_layers")
    vocab, doubled = cfg.count("vocab_size"), cfg.count("intermediate_size")
    width = cfg.count("kv_channels", max(1, dim // heads))
    if not cfg.flag("no_bias", True):
        cfg.fault("no_bias", "false is not understood in family qwen; correct the config")
    plan = Blueprint(
        dim=dim, hidden_dim=doubled // 2, n_layers=layers, n_heads=heads, n_kv_heads=heads, head_dim=width,
        vocab_size=vocab, tied=cfg.tied(False),
    )  # fmt: skip
    if cfg.faults:
        return plan
    inner, half = heads * width, doubled // 2
    rows = norm("ln_1", dim) + linear("attn.c_attn", 3 * inner, dim, True) + linear("attn.c_proj", dim, inner)
    rows += (
        norm("ln_2", dim) + linear("mlp.w1", half, dim) + linear("mlp.w2", half, dim) + linear("mlp.c_proj", dim, half)
    )
    names = (("nk", "num_attention_heads"), ("dk", "kv_channels"), ("dv", "kv_channels"))
    layer = CacheLayer(
        kind="full", heads=heads, key_dim=width, value_dim=width,
        sources=tuple((symbol, cfg.path(name)) for symbol, name in names),
    )  # fmt: skip
    plan.layers = (layer,) * layers
    plan.rows = whole(
        dim, vocab, plan.tied, [rows] * layers, embedding="wte", prefix="transformer.", norm_name="ln_f", inside="h",
    )  # fmt: skip
    return plan


def _nas(cfg: Config) -> Blueprint:
    """`block_configs` says of each layer how many query heads share a KV head, or that its attention is gone."""
    sizes = read_sizes(cfg, hidden="")
    plan = sizes.blueprint(cfg.tied(False))
    blocks = cfg.raw("block_configs")
    if not isinstance(blocks, list) or len(blocks) != sizes.layers:
        cfg.fault("block_configs", "must list one object a layer; give the config as it is published")
        return plan
    bias, mlp_bias = cfg.flag("attention_bias", False), cfg.flag("mlp_bias", False)
    caches: list[CacheLayer] = []
    layers: list[list[Row]] = []
    for block in blocks:
        found = _nas_block(block, sizes.heads, sizes.dim)
        if found is None:
            plan.unknown.append("a block of block_configs is not understood")
            return plan
        kv, hidden = found
        rows: list[Row] = []
        if kv:
            rows += norm("input_layernorm", sizes.dim)
            rows += attention(sizes.dim, sizes.q, kv * sizes.head_dim, kv * sizes.head_dim, qkv_bias=bias, o_bias=bias)
        if hidden:
            rows += norm("post_attention_layernorm", sizes.dim) + swiglu(sizes.dim, hidden, bias=mlp_bias)
        names = (("nk", "block_configs[].attention.n_heads_in_group"), ("dk", sizes.head_dim_source))
        caches.append(
            CacheLayer(
                kind="full" if kv else "none",
                heads=kv,
                key_dim=sizes.head_dim if kv else 0,
                value_dim=sizes.head_dim if kv else 0,
                sources=tuple((s, cfg.path(n)) for s, n in names) if kv else (),
            )
        )
        layers.append(rows)
    if cfg.faults:
        return plan
    plan.layers = tuple(caches)
    plan.rows = whole(sizes.dim, sizes.vocab, plan.tied, layers)
    return plan


def _nas_block(block: Any, heads: int, dim: int) -> tuple[int, int] | None:
    """(KV heads, feed-forward width) of a block, 0 for what is gone; None when it is not understood."""
    if not isinstance(block, dict):
        return None
    own, ffn = block.get("attention"), block.get("ffn")
    if not isinstance(own, dict) or not isinstance(ffn, dict):
        return None
    if own.get("replace_with_linear") or ffn.get("replace_with_linear") or own.get("sparsify") or ffn.get("sparsify"):
        return None
    kv = hidden = 0
    if not own.get("no_op"):
        group = own.get("n_heads_in_group")
        if (
            not isinstance(group, int)
            or isinstance(group, bool)
            or group < 1
            or heads % group
            or own.get("window_length")
        ):
            return None
        kv = heads // group
    if not ffn.get("no_op"):
        multiple = ffn.get("ffn_mult")
        if isinstance(multiple, bool) or not isinstance(multiple, int | float) or not 0 < multiple < 64:
            return None
        hidden = _nas_width(float(multiple), dim)
    return kv, hidden


def _nas_width(multiple: float, dim: int) -> int:
    """int(2 * multiple * dim / 3), rounded up to 256: the width that the published code of these models takes."""
    return -(-int(2 * multiple * dim / 3) // 256) * 256


FAMILIES: tuple[Family, ...] = (
    Family(
        model_type="falcon", architectures=("FalconForCausalLM",), build=_falcon,
        checked="the library's count of small configs", kinds="full",
        words="the published 180B file holds a head that the library ties to the embedding",
        defaults={"max_position_embeddings": 2048},
    ),
    Family(
        model_type="qwen", architectures=("QWenLMHeadModel",), build=_qwen1, checked="nothing: formula alone",
        kinds="full", compared=(), defaults={"max_position_embeddings": 8192},
    ),
    Family(
        model_type="nemotron-nas", architectures=("DeciLMForCausalLM",), build=_nas, checked="nothing: formula alone",
        kinds="full, none", compared=(),
    ),
)  # fmt: skip
