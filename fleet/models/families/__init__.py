"""Every family that is priced, by `model_type`; one module a kin. To add one, add it to its module's FAMILIES."""

from __future__ import annotations

from importlib import import_module

from fleet.models.blueprint import Family

_MODULES = ("dense", "moe", "mla", "gemma", "hybrid", "mamba", "older", "step")


def _gather() -> dict[str, Family]:
    found: dict[str, Family] = {}
    for module in _MODULES:
        for family in import_module(f"fleet.models.families.{module}").FAMILIES:
            if family.model_type in found:
                raise ValueError(f"family {family.model_type} stands twice")
            found[family.model_type] = family
    return found


FAMILIES: dict[str, Family] = _gather()
"""Family by `model_type`."""
