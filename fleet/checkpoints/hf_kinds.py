"""Model types of Hugging Face configs that are not decoder language models, and what they are instead."""

from __future__ import annotations

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
