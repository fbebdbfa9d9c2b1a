"""The cards that are shipped: one YAML file each, a row of `skus` of fleet.yaml, every figure with its source."""

from __future__ import annotations

import os
from functools import lru_cache

_FOLDER = os.path.dirname(os.path.abspath(__file__))


@lru_cache(maxsize=1)
def sku_names() -> tuple[str, ...]:
    """The names of all shipped SKUs, sorted."""
    return tuple(sorted(name.removesuffix(".yaml") for name in os.listdir(_FOLDER) if name.endswith(".yaml")))


def sku_text(name: str) -> str:
    """The YAML text of a shipped SKU. KeyError for any other name."""
    if name not in sku_names():
        raise KeyError(name)
    with open(os.path.join(_FOLDER, f"{name}.yaml"), encoding="utf-8") as file:
        return file.read()
