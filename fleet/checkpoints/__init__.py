"""One file a model format; `load_model` recognises them by content, never by suffix.

Importing this package is cheap: each reader is imported when a file of its kind is met.
"""

from __future__ import annotations

import os

from fleet.checkpoints.seeded import SEEDED_NAME, seeded_model
from fleet.checkpoints.source import open_regular, read_exactly, shown
from fleet.errors import DescriptionError
from fleet.model import Model

__all__ = ["SEEDED_NAME", "load_model", "seeded_model"]

_SNIFF_BYTES = 256


def load_model(path: str | None) -> Model:
    """The model that `path` holds; None or the name of the embedded model gives that one.

    Read are llama2.c checkpoints (versions 0 and 1), a Hugging Face `config.json`, or the folder with one; `-` is a
    `config.json` on standard input. Headers and sizes only. Raises DescriptionError with every fault found.
    """
    if path is None or (path == SEEDED_NAME and not os.path.exists(path)):
        return seeded_model()
    if path == "-":
        from fleet.checkpoints.hf_config import read_config_stream

        return read_config_stream()
    if os.path.isdir(path):
        from fleet.checkpoints.hf_config import read_config_folder

        return read_config_folder(path)
    return _load_file(path)


def _load_file(path: str) -> Model:
    handle, size = open_regular(path)
    with handle:
        head = read_exactly(handle, _SNIFF_BYTES, path)
        if not head:
            raise DescriptionError.at(shown(path), "", "is empty; copy the file again")
        if _is_json(head):
            from fleet.checkpoints.hf_config import read_config

            return read_config(handle, size, path)
        from fleet.checkpoints.foreign import refusal

        refused = refusal(head, size)
        if refused is not None:
            raise DescriptionError.at(shown(path), "", refused)
        from fleet.checkpoints.llama2c import read_llama2c

        return read_llama2c(handle, size, path)


def _is_json(head: bytes) -> bool:
    """A brace first and no zero byte: a version 0 header of this width would hold zero bytes."""
    return head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"{" and 0 not in head
