"""A parsed config -> a Model: finds the family, lets it read, and says in words what was not understood."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fleet.checkpoints.json_text import shorten
from fleet.model import Model, TensorSpec
from fleet.models.blueprint import Blueprint, Family, Row
from fleet.models.config import Config
from fleet.models.families import FAMILIES
from fleet.models.left_out import INSIDE, LEFT_OUT
from fleet.models.quantised import Scheme, misfit, read_scheme, stored
from fleet.models.read_recipe import read_recipe
from fleet.models.wrappers import FLAT, NOT_PRICED, OF_WRAPPER, WRAPPERS, vision_rows

_EXPERTS_PER_TOKEN = (
    "num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_top_k", "top_k_experts", "moe_k",
)  # fmt: skip
_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def understand(document: dict[str, Any], text: str, told: str, empty: Model, beside: Any = None) -> Model:
    """`empty` (name, path, digest) filled in from a config. Raises DescriptionError with every fault.

    `beside` is the parsed `hf_quant_config.json`, None when there is none.
    """
    model_type = document["model_type"]
    within = _within(document, model_type)
    cfg = Config(document, text, told, within=within)
    inner = cfg.document.get("model_type", WRAPPERS.get(model_type, "")) if within else FLAT.get(model_type, model_type)
    if inner in (f"{model_type}_text", f"{model_type}_text_config") and model_type in FLAT:
        inner = FLAT[model_type]
    inner = OF_WRAPPER.get(model_type, inner)
    family = FAMILIES.get(inner) if isinstance(inner, str) else None
    if family is None:
        kind = shorten(model_type)
        why = NOT_PRICED.get(inner if isinstance(inner, str) else "", NOT_PRICED.get(model_type, ""))
        words = f"family {kind} is not understood: KV and weights are not priced{why and ': ' + why}"
        return replace(empty, family=kind, unknown=(words, *_other_words(cfg, None)))
    inside = INSIDE.get(family.model_type, {}) if within else {}
    cfg.defaults = {**LEFT_OUT.get(family.model_type, {}), **inside, **family.defaults}
    if model_type in FLAT and not within:
        cfg.raw("vision_config")
    plan = family.build(cfg)
    model = _model(cfg, family, plan, replace(empty, family=model_type), beside)
    cfg.raise_faults()
    return replace(model, recipe=read_recipe(cfg, model))


def _within(document: dict[str, Any], model_type: str) -> str:
    """The name of the object that holds the language model's config; empty when it is the document itself."""
    if model_type not in WRAPPERS:
        return ""
    return next((name for name in ("text_config", "llm_config") if isinstance(document.get(name), dict)), "")


def _model(cfg: Config, family: Family, plan: Blueprint, empty: Model, beside: Any) -> Model:
    seq_len = cfg.count("max_position_embeddings")
    rope_theta, norm_eps = cfg.rope_theta(), cfg.positive("rms_norm_eps", 1e-5)
    _check_architecture(cfg, family)
    dtype = cfg.dtype()
    scheme, scheme_words, kv_dtype = read_scheme(
        cfg.outer.get("quantization_config") or cfg.document.get("quantization_config"), beside
    )
    words = [*plan.unknown, *_other_words(cfg, family)]
    if dtype is not None and dtype not in _DTYPES:
        words.append(f"weights of type {shorten(dtype)} are not understood")
    weights_dtype = _DTYPES.get(dtype or "bfloat16", "bf16")
    is_clear = not words and not cfg.faults
    model = replace(
        empty,
        dim=plan.dim, hidden_dim=plan.hidden_dim, n_layers=plan.n_layers, n_heads=plan.n_heads,
        n_kv_heads=plan.n_kv_heads, head_dim=plan.head_dim, vocab_size=plan.vocab_size, seq_len=seq_len,
        shared_classifier=plan.tied, weights_dtype=weights_dtype,
        kv_dtype=kv_dtype or weights_dtype, rope_theta=rope_theta, norm_eps=norm_eps,
        warnings=_warnings(cfg, dtype), excludes=tuple(plan.excludes),
        layers=plan.layers if is_clear else (), mtp_layers=plan.mtp_layers if is_clear else (),
        mtp_unknown=tuple(plan.mtp_unknown), experts_per_token=_experts_per_token(cfg),
    )  # fmt: skip
    if not is_clear:
        return replace(model, unknown=tuple(dict.fromkeys((*words, *scheme_words))))
    if plan.layers is None:
        words.append("the cache layout is not understood: KV is not priced")
    return _with_weights(model, cfg, family, plan, scheme, scheme_words, words)


def _experts_per_token(cfg: Config) -> int | None:
    """The routed experts of a token, in whichever field the family writes it; None where fields contradict."""
    found = {cfg.number(name, least=0) or None for name in _EXPERTS_PER_TOKEN if cfg.has(name)}
    return found.pop() if len(found) == 1 else None


def _with_weights(
    model: Model, cfg: Config, family: Family, plan: Blueprint, scheme: Scheme | None, scheme_words: list[str],
    words: list[str],
) -> Model:  # fmt: skip
    """The tensor table, as the checkpoint stores it, and words for what of it was never compared."""
    if plan.rows is not None and scheme is not None and not scheme_words:
        scheme_words = misfit(_specs(plan.rows, model.weights_dtype), scheme)
    if plan.rows is None or scheme_words:
        told = scheme_words or ["weights: the tensors of this family are not understood, not priced"]
        plain = () if plan.rows is None else _specs(plan.rows, model.weights_dtype)
        parameters = sum(spec.n_parameters for spec in plain)
        unknown = tuple(dict.fromkeys((*words, *told)))
        return replace(model, unknown=unknown, counted_parameters=parameters or None)
    rows = plan.rows + vision_rows(cfg, plan)
    table, mtp = _specs(rows, model.weights_dtype), _specs(plan.mtp_rows, model.weights_dtype)
    if scheme is not None:
        table, mtp = stored(table, scheme), stored(mtp, scheme)
    key = scheme.key if scheme else "plain"
    compared = key in family.compared
    model = replace(
        model, tensors=table, mtp_tensors=mtp, quantisation=scheme.title if scheme else None,
        weights_compared=compared, excludes=tuple(plan.excludes),
    )  # fmt: skip
    if not compared:
        kind = scheme.title if scheme else model.weights_dtype
        words.append(
            f"weights: {model.computed_weights_bytes:,} B computed for {kind}, unverified: compared with no published "
            f"total of family {family.model_type} in this type"
        )
    return replace(model, unknown=tuple(words))


def _specs(rows: list[Row], dtype: str) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(
            name=name, shape=shape, role=role, repeat=repeat, dtype="fp32" if role == "buffer" else dtype,
        )
        for name, shape, role, repeat in rows
    )  # fmt: skip


def _check_architecture(cfg: Config, family: Family) -> None:
    """A fault when `architectures` is malformed, or names another listed family than `model_type` does."""
    others = {name for other in FAMILIES.values() for name in other.architectures} - set(family.architectures)
    for name in cfg.architectures():
        if name in others and not cfg.within and cfg.outer["model_type"] not in FLAT:
            kind = shorten(cfg.outer["model_type"])
            cfg.faults.append(("architectures", f"{name} contradicts model_type {kind}; correct one"))


def _other_words(cfg: Config, family: Family | None) -> list[str]:
    """Words for program code, foreign architectures and telling fields that nobody read."""
    words = []
    names = cfg.architectures()
    known = () if family is None else family.architectures
    code = cfg.outer.get("auto_map")
    named = code.get("AutoModelForCausalLM") if isinstance(code, dict) else None
    # Published code of a family's own, or of its wrapper, is the family; any other may do anything.
    own = {*known, *(names[:1] if cfg.within and family is not None else ())}
    if named and not (isinstance(named, str) and named.rsplit(".", 1)[-1] in own):
        words.append("auto_map names program code of the model's own: not understood")
    if family is None:
        quantised = cfg.outer.get("quantization_config")
        if quantised:
            words += read_scheme(quantised, None)[1] or ["the weights are quantised"]
        return words
    if names and not cfg.within and names[0] not in known and cfg.outer["model_type"] not in FLAT:
        words.append(f"architecture {shorten(names[0])} is not understood in family {family.model_type}")
    return words + cfg.unread_words()


def _warnings(cfg: Config, dtype: str | None) -> tuple[str, ...]:
    told = [] if dtype else ["the config names no dtype: bf16 is assumed"]
    told += [
        f"the config leaves out {name}: the library's {value:,} is taken" for name, value in sorted(cfg.taken.items())
    ]
    return tuple(told)
