"""Checkpoints that come with the project, by name. `waybill-240K` speaks: `scenarios/speaker/train.py` made it."""

from __future__ import annotations

import os

__all__ = ["shipped_model_file", "shipped_model_names"]

_FOLDER = os.path.dirname(os.path.abspath(__file__))
_SUFFIX = ".bin"


def shipped_model_names() -> tuple[str, ...]:
    """Names that `--model` and a scenario's `model` take where no file has that name, sorted."""
    return tuple(sorted(entry.removesuffix(_SUFFIX) for entry in os.listdir(_FOLDER) if entry.endswith(_SUFFIX)))


def shipped_model_file(name: str) -> str | None:
    """The checkpoint of a shipped name; None for any other, and where a file of that name stands in the way."""
    if name not in shipped_model_names() or os.path.lexists(name):
        return None
    return os.path.join(_FOLDER, name + _SUFFIX)
