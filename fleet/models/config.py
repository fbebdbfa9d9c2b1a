"""The fields of a Hugging Face config, each checked where it is read; faults are collected and told at once.

What a family reads is remembered: `--explain` names the field of every number, and a field that looks like it changes
the layout but was read by nobody makes the model unknown (`unread`).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from fleet.checkpoints.json_text import shorten
from fleet.errors import DescriptionError, Fault

# Far above any model known, far below what would make a table of tensors a burden.
_LARGEST = {
    "hidden_size": 1 << 20,
    "num_hidden_layers": 1 << 12,
    "num_attention_heads": 1 << 14,
    "num_key_value_heads": 1 << 14,
    "head_dim": 1 << 14,
    "vocab_size": 1 << 26,
    "max_position_embeddings": 1 << 31,
}
_LARGEST_OTHER = 1 << 22

# Fields that change a layout in some family. A false, zero or empty value is harmless.
_TELLING = re.compile(
    r"expert|moe|router|lora|mamba|ssm|conv_|conv1d|linear_(attn|key|value|num)|index_(topk|head|n)|indexer|nextn|mtp"
    r"|vision|audio|text_config|cross_attention|hybrid|block_configs|attention_chunk|no_rope_layer|kv_shared|share_"
    r"|global_(head|key|num)|num_global|n_heads_in_group|attn_layer|expert_layer|recurrent|rwkv|altup|laurel|per_layer"
    r"|multi_query|parallel_attn|v_head_dim|value_head_dim|qk_rope|qk_nope|compress|quantiz|sparse_attention|num_kv_heads"
    r"|swa_|k_eq_v|double_wide|layers_block_type|engram|csa|hca"
    r"|(^|_)bias$|bias_linear|qk_(layer)?norm|output_gate|^sliding_window$|^layer_types$|bidirectional|cla_|yoco"
)
# What routes, trains or shows, but keeps and stores nothing.
_HARMLESS = re.compile(
    r"^(quantization_config|output_router_logits|router_(aux_loss_coef|jitter_noise|z_loss_coef|dtype)|moe_layer_freq"
    r"|num_experts_per_tok|experts_per_token|moe_router_(use_sigmoid|topk_scaling_factor|.*_coeff?|dtype)"
    r"|use_mamba_kernels|mamba_hidden_act|mamba_chunk_size|chunk_size|time_step_.*|use_routing_bias|vision_.*token.*"
    r"|index_topk|index_topk_freq|expert_group_size|audio_token.*|mtp_loss.*|moe_k"
    r"|mamba_ssm_cache_dtype|ep_size|num_experts_per_token|_experts_implementation|.*rope_(theta|scaling|interleave)"
    r"|index_share_for_mtp_iteration|moe_router_scaling_factor|add_cross_attention|cross_attention_hidden_size)$"
)
_OF_TOWERS = re.compile(r"vision|audio|image|video")
_TOLD_FIELDS = 8
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],]', re.DOTALL)
_COLON = re.compile(r"\s*:")


class Config:
    """Reads one document, or the `within` object of it. A wrong field becomes a fault and a harmless value.

    `defaults` are the library's values for fields that a config of this family may leave out.
    """

    def __init__(self, document: dict[str, Any], text: str, source: str, *, within: str = "") -> None:
        self.outer = document
        self.document: dict[str, Any] = document[within] if within else document
        self.within = within
        self.source = source
        self.defaults: Mapping[str, int] = {}
        self.faults: list[tuple[str, str]] = []
        self.taken: dict[str, int] = {}
        self.read: set[str] = set()
        self._text = text

    def path(self, name: str) -> str:
        """The field as the file has it."""
        return f"{self.within}.{name}" if self.within else name

    def fault(self, field: str, message: str) -> None:
        self.faults.append((self.path(field), message))

    def raise_faults(self) -> None:
        """Raises DescriptionError when any field was wrong, in the order of the file, missing fields last."""
        if not self.faults:
            return
        places = _key_places(self._text, {field for field, _ in self.faults})
        told = [Fault(self.source, field, words, *places.get(field, (0, 0))) for field, words in self.faults]
        raise DescriptionError(sorted(dict.fromkeys(told), key=lambda f: (f.line == 0, f.line, f.column)))

    def has(self, name: str) -> bool:
        """Whether the field says something: present and not null."""
        return self.document.get(name) is not None

    def raw(self, name: str) -> Any:
        """The value as it stands, counted as read; the reader checks it."""
        self.read.add(name)
        return self.document.get(name)

    def number(self, name: str, *, least: int = 1) -> int | None:
        """A whole number: the field, else the library's where it is left out; None when null (or wrong: a fault)."""
        value = self.raw(name)
        if name in self.defaults and name not in self.document:
            value = self.taken[name] = self.defaults[name]
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            self.fault(name, f"is {shorten(value)}: must be a whole number")
            return None
        largest = _LARGEST.get(name, _LARGEST_OTHER)
        if not least <= value <= largest:
            self.fault(name, f"is {shorten(value)}: must lie in {least}..{largest:,}")
            return None
        return value

    def count(self, name: str, default: int | None = None, *, least: int = 1) -> int:
        """A whole number that must be known: the field, else `default`, else the library's, else a fault and 1."""
        before = len(self.faults)
        value = self.number(name, least=least)
        if value is not None:
            return value
        if len(self.faults) > before:
            return max(1, least)
        if default is None and name in self.defaults:
            default = self.taken[name] = self.defaults[name]
        if default is not None:
            return default
        found = "is null" if name in self.document else "is missing"
        self.fault(name, f"{found}; give a whole number, e.g. {name}: 4096")
        return max(1, least)

    def flag(self, name: str, default: bool = False) -> bool:
        """A true or false; `default` when it is left out."""
        self.read.add(name)
        value = self.document.get(name, default)
        if isinstance(value, bool):
            return value
        self.fault(name, f"is {shorten(value)}: must be true or false")
        return default

    def positive(self, name: str, default: float, document: Mapping[str, Any] | None = None) -> float:
        """A finite number above 0; `default` when it is left out or null."""
        value = (self.document if document is None else document).get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
            self.fault(name, f"is {shorten(value)}: must be a number above 0")
            return default
        try:
            return float(value)
        except OverflowError:
            self.fault(name, "is far too large")
            return default

    def rope_theta(self) -> float:
        """`rope_theta`, which newer configs keep within `rope_parameters`."""
        nested = self.document.get("rope_parameters")
        if "rope_theta" not in self.document and isinstance(nested, dict):
            return self.positive("rope_theta", 10000.0, nested)
        return self.positive("rope_theta", 10000.0)

    def words(self, name: str, length: int | None = None) -> list[str] | None:
        """A list of words, of `length` where that is given; None when left out or null (or wrong: a fault)."""
        value = self.raw(name)
        if value is None:
            return None
        if not (isinstance(value, list) and all(isinstance(word, str) for word in value)):
            self.fault(name, f"is {shorten(value)}: must be a list of words")
            return None
        if length is not None and len(value) != length:
            self.fault(name, f"lists {len(value):,} layers, num_hidden_layers says another number; correct one")
            return None
        return value

    def numbers(self, name: str, *, least: int = 0) -> list[int] | None:
        """A list of whole numbers; None when left out or null (or wrong: a fault)."""
        value = self.raw(name)
        if value is None:
            return None
        if not (
            isinstance(value, list)
            and all(isinstance(v, int) and not isinstance(v, bool) and least <= v <= _LARGEST_OTHER for v in value)
        ):
            self.fault(name, f"is {shorten(value)}: must be a list of whole numbers from {least}")
            return None
        return value

    def tied(self, default: bool) -> bool:
        """`tie_word_embeddings`, which a wrapper states outside its text config."""
        if self.within and "tie_word_embeddings" in self.outer and "tie_word_embeddings" not in self.document:
            value = self.outer["tie_word_embeddings"]
            if isinstance(value, bool):
                return value
            self.faults.append(("tie_word_embeddings", f"is {shorten(value)}: must be true or false"))
            return default
        return self.flag("tie_word_embeddings", default)

    def dtype(self) -> str | None:
        """The checkpoint's type: `torch_dtype` or, newer, `dtype`, within or outside; None when left out."""
        return self._dtype(self.document, self.within) or (self._dtype(self.outer, "") if self.within else None)

    def _dtype(self, document: dict[str, Any], within: str) -> str | None:
        prefix = f"{within}." if within else ""
        found: dict[str, str] = {}
        for name in ("torch_dtype", "dtype"):
            value = document.get(name)
            if isinstance(value, str):
                found[name] = value.removeprefix("torch.")
            elif value is not None:
                self.faults.append((prefix + name, f"is {shorten(value)}: must be a word such as bfloat16"))
        if len(set(found.values())) > 1:
            words = f"{shorten(found['dtype'])} contradicts torch_dtype {shorten(found['torch_dtype'])}"
            self.faults.append((prefix + "dtype", words))
        return next(iter(found.values()), None)

    def architectures(self) -> list[str]:
        """The names in `architectures`; empty when there are none (or wrong: a fault)."""
        names = self.outer.get("architectures")
        if names is None:
            return []
        if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
            self.faults.append(("architectures", f"is {shorten(names)}: must be a list of names"))
            return []
        return names

    def unread(self) -> list[str]:
        """Fields that tell of a layout, say something, and were read by nobody."""
        found = _telling(self.document, self.read)
        if self.within:
            outer = _telling(self.outer, {self.within})
            found += [key for key in outer if not _OF_TOWERS.search(key)]
        return sorted(set(found))

    def unread_words(self) -> list[str]:
        """The same as one sentence for `unknown`, or none."""
        foreign = self.unread()
        if not foreign:
            return []
        more = f" and {len(foreign) - _TOLD_FIELDS} more" if len(foreign) > _TOLD_FIELDS else ""
        return [f"fields not understood: {', '.join(map(shorten, foreign[:_TOLD_FIELDS]))}{more}"]


def _telling(document: dict[str, Any], read: set[str]) -> list[str]:
    return [
        key
        for key, value in document.items()
        if value and key not in read and _TELLING.search(key) and not _HARMLESS.match(key)
    ]


def _key_places(text: str, wanted: set[str]) -> dict[str, tuple[int, int]]:
    """Line and column, from 1, of the `wanted` keys of valid JSON `text`, as paths of two names at most."""
    places: dict[str, tuple[int, int]] = {}
    depth, parent = 0, ""
    for token in _TOKEN.finditer(text):
        mark = token[0]
        if mark in ("{", "["):
            depth += 1
        elif mark in ("}", "]"):
            depth -= 1
        elif depth in (1, 2) and mark != "," and _COLON.match(text, token.end()):
            key = json.loads(mark)
            parent = key if depth == 1 else parent
            path = key if depth == 1 else f"{parent}.{key}"
            # Counting lines is for the few keys that are told: a hostile file may hold a million.
            if path in wanted:
                start = token.start()
                line_start = text.rfind("\n", 0, start) + 1
                places[path] = (text.count("\n", 0, start) + 1, start - line_start + 1)
    return places
