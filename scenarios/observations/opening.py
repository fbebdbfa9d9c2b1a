"""Whether a path holds an observation or a document of kvwaybill: documents are JSON objects that name a schema."""

from __future__ import annotations

import io
import json
import os
import stat
import sys
from collections.abc import Callable

from scenarios.observations.observation import Reading

_HEAD = 1 << 16
_FOLDER = b"\0folder"


def observation_at(path: str) -> Callable[[str | None], Reading] | None:
    """How to read an observation of a version; None for documents, and for paths that are not there to be read.

    Logs of JSON lines are observations: their first line is an object of its own without a schema.
    """
    head = _head_of(path)
    if head is None or (head != _FOLDER and _is_document(head)):
        return None

    def read(version: str | None) -> Reading:
        from scenarios.observations.registry import read_observations

        return read_observations(path, version=version)

    return read


def _head_of(path: str) -> bytes | None:
    """Its first bytes, of stdin without taking them; None where it is no file, folder or pipe of stdin."""
    if path == "-":
        peek = getattr(getattr(sys.stdin, "buffer", None), "peek", None)
        return bytes(peek(_HEAD)) if peek is not None else None
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            return _FOLDER
        if not stat.S_ISREG(mode):
            return None
        with open(path, "rb") as file:
            return file.read(_HEAD)
    except (OSError, ValueError):
        return None


def _is_document(head: bytes) -> bool:
    """Whether it begins as a JSON object that is not a line of a log; an empty file is told as a document."""
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not text:
        return True
    if b"kvwaybill/" in text and b"schema" in text:
        return True
    if not text.startswith(b"{"):
        return False
    first = io.BytesIO(text).readline()
    try:
        value = json.loads(first)
    except (ValueError, RecursionError):
        return True
    return not isinstance(value, dict) or len(first) == len(text)
