"""How a model file is opened and named: regular files only, read-only, with every refusal in words.

Shared by the readers and by `executor.weights`, which must find the same bytes again.
"""

from __future__ import annotations

import hashlib
import os
import stat
from typing import BinaryIO

from fleet.errors import DescriptionError

FULL_DIGEST_LIMIT = 1 << 30
"""Files above this many bytes are named by their header and size alone: hashing them would dominate `admit`."""

_CHUNK = 1 << 20


def shown(path: str) -> str:
    """`path` as it may be printed: control characters and undecodable bytes are escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in path)


def model_name(path: str) -> str:
    """The name of a model file: its base name without the suffix."""
    base = os.path.basename(os.path.normpath(path))
    return shown(os.path.splitext(base)[0] or base)


def open_regular(path: str) -> tuple[BinaryIO, int]:
    """Open `path` read-only; gives the handle and its size in bytes.

    Raises DescriptionError when it is missing, unreadable, a folder, or no regular file (a pipe would block for ever).
    """
    told = shown(path)
    try:
        # Without O_NONBLOCK the open of a named pipe waits for a writer before anything can be refused.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise DescriptionError.at(told, "", "no such file; give the path of a file that exists") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise DescriptionError.at(told, "", f"cannot be opened: {reason}; check the path and its permissions") from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "not a regular file"
        raise DescriptionError.at(told, "", f"is {kind}; give the path of the file itself")
    return os.fdopen(descriptor, "rb"), status.st_size


def read_exactly(handle: BinaryIO, size: int, path: str) -> bytes:
    """The first `size` bytes of the file, fewer when it is shorter. Raises DescriptionError when reading fails."""
    return read_at(handle, 0, size, path)


def read_at(handle: BinaryIO, offset: int, size: int, path: str) -> bytes:
    """`size` bytes from `offset` on, fewer when the file ends before. Raises DescriptionError when reading fails."""
    try:
        handle.seek(offset)
        return handle.read(size)
    except OSError as error:
        raise DescriptionError.at(shown(path), "", f"cannot be read: {error.strerror}; check the disk") from None


def digest_header(header: bytes, size: int) -> str:
    """SHA-256 of a file's header and its size in decimal: names a file that is too large to be read whole."""
    return hashlib.sha256(header + str(size).encode()).hexdigest()


def digest_file(handle: BinaryIO, size: int, header: bytes, path: str) -> str:
    """SHA-256 of the file in hex; above FULL_DIGEST_LIMIT bytes of its header and its size in decimal."""
    if size > FULL_DIGEST_LIMIT:
        return digest_header(header, size)
    digest = hashlib.sha256()
    try:
        handle.seek(0)
        while chunk := handle.read(_CHUNK):
            digest.update(chunk)
    except OSError as error:
        raise DescriptionError.at(shown(path), "", f"cannot be read: {error.strerror}; check the disk") from None
    return digest.hexdigest()
