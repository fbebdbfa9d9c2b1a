"""The families of Hugging Face configs that are priced, as data, and the tensor table of such a model.

A family is listed here only if its parameters and its KV bytes were compared, to the byte, with counts of its real
configs. All of them are dense decoders with seven projections a layer; they differ in biases, norms and defaults.
Shapes follow the `nn.Linear` convention of the checkpoints, [out, in].
"""

from __future__ import annotations

from dataclasses import dataclass

from fleet.model import Role, TensorSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """`qkv_bias` None: q, k, v and o have biases when the config says `attention_bias`; True: q, k, v always.

    `window` says which field switches a sliding window on: None for families without one.
    """

    architecture: str
    tied: bool = False
    qkv_bias: bool | None = None
    mlp_bias: bool = False
    qk_norm: bool = False
    window: str | None = None


FAMILIES: dict[str, Family] = {
    "llama": Family(architecture="LlamaForCausalLM", mlp_bias=True),
    "mistral": Family(architecture="MistralForCausalLM", qkv_bias=False, window="sliding_window"),
    "qwen2": Family(architecture="Qwen2ForCausalLM", qkv_bias=True, window="use_sliding_window"),
    "qwen3": Family(architecture="Qwen3ForCausalLM", qk_norm=True, window="use_sliding_window"),
    "gemma": Family(architecture="GemmaForCausalLM", tied=True),
}

_OTHER_KINDS = {
    "an encoder": (
        "albert bert big_bird camembert convbert data2vec-text deberta deberta-v2 distilbert electra ernie "
        "esm flaubert funnel ibert layoutlm layoutlmv2 layoutlmv3 longformer luke megatron-bert mobilebert "
        "modernbert mpnet mra new nezha nomic_bert nystromformer perceiver qdqbert rembert roberta roformer "
        "squeezebert xlm xlm-roberta xlm-roberta-xl xmod yoso"
    ),
    "an encoder-decoder": (
        "bart blenderbot blenderbot-small fsmt led longt5 m2m_100 marian mbart mt5 mvp nllb-moe pegasus "
        "pegasus_x plbart prophetnet speech_to_text switch_transformers t5 t5gemma umt5 whisper"
    ),
    "a vision or speech model": (
        "align beit chinese_clip clip clip_text_model clip_vision_model convnext convnextv2 deit detr dinov2 "
        "dpt encodec hubert resnet sam segformer siglip siglip_vision_model speecht5 swin swinv2 timm_wrapper "
        "unispeech vit vit_mae vits wav2vec2 wavlm yolos"
    ),
}

NOT_DECODERS: dict[str, str] = {name: kind for kind, names in _OTHER_KINDS.items() for name in names.split()}
"""Model types that are known not to be decoder language models, and what they are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """What decides the tensor table. D, H, L, V as in `fleet.model`; `q` and `kv` are elements of one position."""

    dim: int
    hidden_dim: int
    n_layers: int
    q: int
    kv: int
    head_dim: int
    vocab_size: int
    tied: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool


def tensor_table(shape: Shape, dtype: str) -> tuple[TensorSpec, ...]:
    """Every tensor by its checkpoint name; the embedding stands once where the classifier is tied to it."""
    rows: list[tuple[str, tuple[int, ...], Role]] = [
        ("model.embed_tokens.weight", (shape.vocab_size, shape.dim), "embedding")
    ]
    layer = _layer_rows(shape)
    for index in range(shape.n_layers):
        rows += [(f"model.layers.{index}.{name}", size, role) for name, size, role in layer]
    rows.append(("model.norm.weight", (shape.dim,), "norm"))
    if not shape.tied:
        rows.append(("lm_head.weight", (shape.vocab_size, shape.dim), "classifier"))
    return tuple(TensorSpec(name=name, shape=size, role=role, dtype=dtype) for name, size, role in rows)


def _layer_rows(shape: Shape) -> list[tuple[str, tuple[int, ...], Role]]:
    d, h, q, kv = shape.dim, shape.hidden_dim, shape.q, shape.kv
    projections = (
        ("self_attn.q_proj", q, d, shape.qkv_bias),
        ("self_attn.k_proj", kv, d, shape.qkv_bias),
        ("self_attn.v_proj", kv, d, shape.qkv_bias),
        ("self_attn.o_proj", d, q, shape.o_bias),
        ("mlp.gate_proj", h, d, shape.mlp_bias),
        ("mlp.up_proj", h, d, shape.mlp_bias),
        ("mlp.down_proj", d, h, shape.mlp_bias),
    )
    rows: list[tuple[str, tuple[int, ...], Role]] = [("input_layernorm.weight", (d,), "norm")]
    for name, n_out, n_in, bias in projections:
        rows.append((f"{name}.weight", (n_out, n_in), "projection"))
        if bias:
            rows.append((f"{name}.bias", (n_out,), "bias"))
    if shape.qk_norm:
        rows += [(f"self_attn.{which}_norm.weight", (shape.head_dim,), "norm") for which in ("q", "k")]
    rows.append(("post_attention_layernorm.weight", (d,), "norm"))
    return rows
