"""The content digest of a range of a cache: one function on processors and cards, so that no content has to travel.

sha256 of blocks of 4,096 bytes; their digests, one behind the other, are taken for content in turn, until one digest is
left. A range of one block has its plain sha256. Both ends of a copy have one length, so lengths are not mixed in.
"""

from __future__ import annotations

import hashlib

__all__ = ["BLOCK_BYTES", "tree_digest"]

BLOCK_BYTES = 4096


def tree_digest(content: bytes) -> str:
    """The digest in hexadecimal (64 digits)."""
    return _tree(memoryview(content)).hex()


def _tree(content: memoryview | bytes) -> bytes:
    if len(content) <= BLOCK_BYTES:
        return hashlib.sha256(content).digest()
    blocks = range(0, len(content), BLOCK_BYTES)
    return _tree(b"".join(hashlib.sha256(content[at : at + BLOCK_BYTES]).digest() for at in blocks))
