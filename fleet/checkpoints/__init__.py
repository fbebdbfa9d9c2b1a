"""One file a model format; `load_model` recognises them by content, never by suffix.

Importing this package is cheap: each reader is imported when a file of its kind is met.
"""

from __future__ import annotations

import os

from fleet.checkpoints.seeded import SEEDED_NAME, seeded_model
from fleet.checkpoints.shipped import shipped_model_file
from fleet.checkpoints.source import open_regular, read_exactly, shown
from fleet.errors import DescriptionError
from fleet.model import Model

__all__ = ["SEEDED_NAME", "load_model", "seeded_model"]

_SNIFF_BYTES = 256
# An index begins with a short object of metadata, or with its map.
_INDEX_SNIFF_BYTES = 1024


def load_model(path: str | None) -> Model:
    """The model that `path` holds; None or the name of the embedded model gives that one, a shipped name its own.

    Read are llama2.c checkpoints (versions 0 and 1), a Hugging Face `config.json`, safetensors and their index, GGUF,
    a folder of these, and a model id `org/name[@revision]` of the local Hugging Face cache; `-` is a `config.json` on
    standard input. Headers and sizes only, and never a network. Raises DescriptionError with every fault found.
    """
    if path is None or (path == SEEDED_NAME and not os.path.exists(path)):
        return seeded_model()
    if path == "-":
        from fleet.checkpoints.hf_config import read_config_stream

        return read_config_stream()
    if os.path.isdir(path):
        from fleet.checkpoints.folder import read_folder

        return read_folder(path)
    if (shipped := shipped_model_file(path)) is not None:
        return _load_file(shipped)
    if not os.path.lexists(path):
        return _load_id(path)
    return _load_file(path)


def _load_id(text: str) -> Model:
    """A model of the local cache when `text` can be an id; the error of a missing file otherwise."""
    from fleet.checkpoints.hub_cache import find_snapshot, is_model_id

    if not is_model_id(text):
        return _load_file(text)
    from fleet.checkpoints.folder import read_folder

    return read_folder(find_snapshot(text), name=text.partition("@")[0].rpartition("/")[2])


def _load_file(path: str) -> Model:
    handle, size = open_regular(path)
    with handle:
        head = read_exactly(handle, _SNIFF_BYTES, path)
        if not head:
            raise DescriptionError.at(shown(path), "", "is empty; copy the file again")
        if _is_json(head):
            if b'"weight_map"' in read_exactly(handle, _INDEX_SNIFF_BYTES, path):
                from fleet.checkpoints.folder import read_index_given

                return read_index_given(path)
            from fleet.checkpoints.hf_config import read_config

            return read_config(handle, size, path)
        if head[8:9] == b"{" and 0 not in head[8:16]:
            from fleet.checkpoints.folder import read_safetensors_given

            return read_safetensors_given(handle, size, path)
        if head[:4] in (b"GGUF", b"FUGG"):
            from fleet.checkpoints.gguf_split import read_gguf_given

            return read_gguf_given(handle, size, path)
        from fleet.checkpoints.foreign import refusal

        refused = refusal(head, size)
        if refused is not None:
            raise DescriptionError.at(shown(path), "", refused)
        from fleet.checkpoints.llama2c import read_llama2c

        return read_llama2c(handle, size, path)


def _is_json(head: bytes) -> bool:
    """A brace first and no zero byte: a version 0 header of this width would hold zero bytes."""
    return head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"{" and 0 not in head
