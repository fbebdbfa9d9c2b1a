"""`tokenizer.json` of a Hugging Face checkpoint: read by the library `tokenizers` (extra `models`), where it is there.

Ids are those of the library, special tokens as the file's own post-processor adds them. Nothing else is read of a
checkpoint's tokenizer; a chat template is the user's own affair.
"""

from __future__ import annotations

import json
from typing import Any

from fleet.checkpoints.source import open_regular, read_exactly, shown
from fleet.errors import DescriptionError, InconclusiveError

__all__ = ["HubTokenizer", "is_hub_tokenizer", "load_hub_tokenizer"]

_MAX_BYTES = 64 << 20
_HEAD = 4096


class HubTokenizer:
    """Text to ids and ids to text, as `executor.tokenizer.Tokenizer` has them."""

    def __init__(self, library: Any, source: str) -> None:
        self._library, self.source = library, source

    def encode(self, text: str) -> list[int]:
        """The ids of a prompt. DescriptionError when there are none, or the text is none that UTF-8 can hold."""
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            words = "holds bytes that are no UTF-8; this tokenizer takes none"
            raise DescriptionError.at("prompt", "", words) from None
        ids = [int(number) for number in self._library.encode(text).ids]
        if not ids:
            raise DescriptionError.at("prompt", "", "comes to no token at all; give some text, or --prompt-ids")
        return ids

    def decode(self, tokens: list[int] | tuple[int, ...]) -> bytes:
        """The text of ids in UTF-8, special tokens left out, with a closing newline."""
        text: str = self._library.decode(list(tokens), skip_special_tokens=True)
        return text.encode("utf-8", "replace") + b"\n"


def is_hub_tokenizer(path: str) -> bool:
    """Whether a file is JSON, as a tokenizer.json is; llama2.c's begin with a number of four bytes."""
    handle, _ = open_regular(path)
    with handle:
        head = read_exactly(handle, _HEAD, path)
    return head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"{" and b"\0" not in head


def load_hub_tokenizer(path: str, vocab_size: int, source: str) -> HubTokenizer:
    """The tokenizer of a tokenizer.json for a model of `vocab_size` ids, called `source` in messages.

    DescriptionError for a file that is none or whose ids the model does not have; InconclusiveError where the library
    that reads it is missing.
    """
    told = shown(path)
    handle, size = open_regular(path)
    with handle:
        if size > _MAX_BYTES:
            raise DescriptionError.at(told, "", f"is larger than {_MAX_BYTES:,} bytes: no tokenizer.json")
        data = read_exactly(handle, size, path)
    try:
        text = data.decode("utf-8")
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise DescriptionError.at(told, "", "is no JSON in UTF-8: no tokenizer.json; download it again") from None
    if not isinstance(document, dict) or "model" not in document:
        raise DescriptionError.at(told, "model", "is missing: no tokenizer.json; give the file of that name")
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise InconclusiveError(
            f"{told} is read by the library tokenizers, which is not installed: install kvwaybill[models],"
            " or give --prompt-ids"
        ) from None
    try:
        library = Tokenizer.from_str(text)
    except Exception as error:  # the library raises Exception itself, whatever is wrong with the file
        raise DescriptionError.at(told, "", f"is not understood by the library tokenizers: {error}"[:400]) from error
    if (largest := max(library.get_vocab(with_added_tokens=True).values(), default=-1)) >= vocab_size:
        words = f"has id {largest:,}, {source} has {vocab_size:,}: the tokenizer of another model"
        raise DescriptionError.at(told, "", words)
    return HubTokenizer(library, told)
