"""The machines that are shipped: one YAML file each, every figure with its source."""

from __future__ import annotations

import os

from fleet.errors import DescriptionError
from fleet.yaml_source import nearest, printable

_FOLDER = os.path.dirname(os.path.abspath(__file__))


def catalog_names() -> tuple[str, ...]:
    """The names of all shipped fleets, sorted."""
    return tuple(sorted(name.removesuffix(".yaml") for name in os.listdir(_FOLDER) if name.endswith(".yaml")))


def catalog_text(name: str) -> str:
    """The YAML text of a shipped fleet. Raises DescriptionError naming the nearest for any other name."""
    names = catalog_names()
    if name not in names:
        message = f"is no shipped fleet{nearest(name, names)} (shipped: {', '.join(names)})"
        raise DescriptionError.at(printable(name), "", message)
    with open(os.path.join(_FOLDER, f"{name}.yaml"), encoding="utf-8") as file:
        return file.read()
