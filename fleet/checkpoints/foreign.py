"""Names the files that people hand over instead of a checkpoint that is read here."""

from __future__ import annotations

import codecs
import struct

_ASK = "give a llama2.c checkpoint (version 0 or 1, float), a Hugging Face config.json, safetensors or GGUF"

_SIGNATURES = (
    (b"tjgg", f"is a GGML file (ggjt): not read; {_ASK}"),
    (b"lmgg", f"is a GGML file: not read; {_ASK}"),
    (b"ak42", f"is a llama2.c checkpoint in big-endian byte order: not read; {_ASK}"),
    (b"PK\x03\x04", f"is a zip archive (a PyTorch .pt or .bin?): not read, for it may run code; {_ASK}"),
    (b"\x89HDF", f"is an HDF5 file: not read; {_ASK}"),
    (b"\x1f\x8b", "is compressed with gzip; unpack it first"),
    (b"\x28\xb5\x2f\xfd", "is compressed with zstd; unpack it first"),
    (b"\x7fELF", f"is a program: not a model; {_ASK}"),
    (b"\x93NUMPY", f"is a NumPy array: not read; {_ASK}"),
    (b"version https://git-lfs", "is a Git LFS pointer, not the file itself; run: git lfs pull"),
)


def refusal(head: bytes, size: int) -> str | None:
    """Why a file beginning with `head` is not read, in words; None when it may be a llama2.c checkpoint."""
    for signature, words in _SIGNATURES:
        if head.startswith(signature):
            return words
    if head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05" and not (len(head) >= 4 and head[2:4] == b"\0\0"):
        return f"is a Python pickle (an old PyTorch checkpoint?): not read, for it may run code; {_ASK}"
    if _is_text(head):
        return f"is text, but no JSON object: not a model; {_ASK}"
    if is_tokenizer(head, size):
        return f"looks like a llama2.c tokenizer, not a checkpoint; give it with --tokenizer, and here {_ASK}"
    return None


def _is_text(head: bytes) -> bool:
    if any(byte < 0x20 and byte not in b"\t\n\r\f" for byte in head):
        return False
    try:
        # Incremental: the head may end within a character.
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return True


def is_tokenizer(head: bytes, size: int) -> bool:
    """A longest piece, then a float score of 0 and a first piece of plausible length that is printable."""
    if len(head) < 13 or size < 13:
        return False
    longest, score, length = struct.unpack_from("<ifi", head)
    piece = head[12 : 12 + max(0, length)]
    return (
        1 <= longest <= 512 and score == 0.0 and 1 <= length <= longest and piece.strip().isascii() and _is_text(piece)
    )
