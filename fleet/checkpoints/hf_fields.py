"""The fields of a dense decoder's config, each checked; faults are collected with line and column and told at once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fleet.checkpoints.hf_families import Family
from fleet.checkpoints.json_text import key_places, shorten
from fleet.errors import DescriptionError, Fault

# Far above any model known, far below what would make a table of tensors a burden.
_LARGEST = {
    "hidden_size": 1 << 20,
    "intermediate_size": 1 << 22,
    "num_hidden_layers": 1 << 12,
    "num_attention_heads": 1 << 14,
    "num_key_value_heads": 1 << 14,
    "head_dim": 1 << 14,
    "vocab_size": 1 << 26,
    "max_position_embeddings": 1 << 31,
}
_OPTIONAL = ("num_key_value_heads", "head_dim")


class Fields:
    """Reads one document. A wrong field becomes a fault and a harmless value; `raise_faults` ends the reading."""

    def __init__(self, document: dict[str, Any], text: str, source: str) -> None:
        self.document = document
        self.source = source
        self.faults: list[tuple[str, str]] = []
        self._text = text

    def fault(self, field: str, message: str) -> None:
        self.faults.append((field, message))

    def raise_faults(self) -> None:
        """Raises DescriptionError when any field was wrong, in the order of the file, missing fields last."""
        if not self.faults:
            return
        places = key_places(self._text, {field for field, _ in self.faults})
        told = [Fault(self.source, field, message, *places.get(field, (0, 0))) for field, message in self.faults]
        raise DescriptionError(sorted(told, key=lambda f: (f.line == 0, f.line, f.column)))

    def sizes(self) -> dict[str, int]:
        """The eight whole numbers, with the library's rules for those left out; 1 for a wrong one."""
        found = {name: self._size(name) for name in _LARGEST}
        given = {name: 1 if value is None else value for name, value in found.items()}
        if found["num_key_value_heads"] is None:
            given["num_key_value_heads"] = given["num_attention_heads"]
        if self.faults:
            return given
        dim, heads, kv_heads = given["hidden_size"], given["num_attention_heads"], given["num_key_value_heads"]
        if found["head_dim"] is None:
            given["head_dim"] = dim // heads
            if dim % heads:
                self.fault("hidden_size", f"{dim:,} is no multiple of num_attention_heads {heads:,}; or add head_dim")
                return given
        if given["head_dim"] % 2:
            self.fault("head_dim", f"{given['head_dim']} is odd, but rotary embedding turns pairs; correct the config")
        if heads % kv_heads:
            self.fault(
                "num_attention_heads", f"{heads:,} is no multiple of num_key_value_heads {kv_heads:,}; correct one"
            )
        return given

    def _size(self, name: str) -> int | None:
        value = self.document.get(name)
        if value is None:
            if name not in _OPTIONAL:
                found = "is null" if name in self.document else "is missing"
                self.fault(name, f"{found}; give a whole number, e.g. {name}: 4096")
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            self.fault(name, f"is {shorten(value)}: must be a whole number")
            return None
        if not 1 <= value <= _LARGEST[name]:
            self.fault(name, f"is {shorten(value)}: must lie in 1..{_LARGEST[name]:,}")
            return None
        return value

    def flag(self, name: str, default: bool) -> bool:
        """A true or false; `default` when it is left out."""
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

    def dtype(self) -> str | None:
        """The checkpoint's type as the config names it: `torch_dtype` or, newer, `dtype`; None when left out."""
        found: dict[str, str] = {}
        for name in ("torch_dtype", "dtype"):
            value = self.document.get(name)
            if isinstance(value, str):
                found[name] = value.removeprefix("torch.")
            elif value is not None:
                self.fault(name, f"is {shorten(value)}: must be a word such as bfloat16")
        if len(set(found.values())) > 1:
            self.fault("dtype", f"{shorten(found['dtype'])} contradicts torch_dtype {shorten(found['torch_dtype'])}")
        return next(iter(found.values()), None)

    def architecture(self) -> str | None:
        """The first name in `architectures`; None when there is none."""
        names = self.document.get("architectures")
        return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else None

    def check_architecture(self, family: Family, families: Mapping[str, Family]) -> None:
        """A fault when `architectures` is malformed, or names another listed family than `model_type` does."""
        names = self.document.get("architectures")
        if names is not None and not (isinstance(names, list) and all(isinstance(n, str) for n in names)):
            self.fault("architectures", f"is {shorten(names)}: must be a list of names")
            return
        others = {f.architecture for f in families.values()} - {family.architecture}
        for name in names or ():
            if name in others:
                self.fault("architectures", f"{name} contradicts model_type {self.document['model_type']}; correct one")

    def window_words(self, family: Family, model_type: str) -> list[str]:
        """Words for a sliding window that is switched on; faults for fields of a wrong form."""
        window = self.document.get("sliding_window")
        if window is not None and (isinstance(window, bool) or not isinstance(window, int) or window < 0):
            self.fault("sliding_window", f"is {shorten(window)}: must be a whole number or null")
            return []
        active = bool(window)
        if family.window == "use_sliding_window":
            active = self.flag("use_sliding_window", False) and active
        words = [f"sliding window {window:,} is not understood in family {model_type}"] if active else []
        kinds = self.document.get("layer_types")
        if kinds is None:
            return words
        if not (isinstance(kinds, list) and all(isinstance(kind, str) for kind in kinds)):
            self.fault("layer_types", f"is {shorten(kinds)}: must be a list of words")
        elif len(kinds) != self.document.get("num_hidden_layers"):
            self.fault(
                "layer_types", f"lists {len(kinds):,} layers, num_hidden_layers says another number; correct one"
            )
        else:
            others = sorted(set(kinds) - {"full_attention"})
            words += [f"layers of kind {shorten(kind)} are not understood" for kind in others[:8]]
        return words
