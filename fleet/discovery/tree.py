"""Files of `/proc` and `/sys` below a root that a test may set. What cannot be read is None, and never an error."""

from __future__ import annotations

import os
import re
import stat

from fleet.units import MAX_FIGURE

MAX_FILE = 4 * 2**20
"""Bytes read of one file; `/proc/cpuinfo` of 1,024 processors is about 2 MiB."""
MAX_ENTRIES = 20_000

_RANGE = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", re.ASCII)


class Tree:
    """A file system seen from `root`. Paths are given without a leading slash: `proc/cpuinfo`.

    Of a copy, nothing is read that lies outside it: a link that leads out would tell of the machine that reads.
    """

    def __init__(self, root: str = "/") -> None:
        self.root = root
        self._within = os.path.realpath(root) if "\0" not in root else root

    def path(self, *parts: str) -> str:
        """The path on this system."""
        return os.path.join(self.root, *parts)

    def text(self, *parts: str) -> str | None:
        """The text of a file without its last blanks; None when there is none, it cannot be read, or it is empty."""
        try:
            path = self.path(*parts)
            if not self._holds(path):
                return None
            # Without O_NONBLOCK a named pipe would wait for a writer, for ever.
            with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    return None
                raw = file.read(MAX_FILE)
        except (OSError, ValueError):
            return None  # not there, not allowed, or (EINVAL, a link that is down) not told
        return raw.decode("utf-8", errors="replace").strip() or None

    def number(self, *parts: str) -> int | None:
        """The whole number of a file, `0x` for hexadecimal; None where it holds anything else, or passes 63 bits."""
        text = self.text(*parts)
        try:
            value = None if text is None or len(text) > 40 else int(text, 16 if text.lower().startswith("0x") else 10)
        except ValueError:
            return None
        return value if value is not None and abs(value) <= MAX_FIGURE else None

    def names(self, *parts: str) -> list[str]:
        """The names in a folder, sorted; none where it cannot be listed."""
        try:
            path = self.path(*parts)
            return sorted(os.listdir(path))[:MAX_ENTRIES] if self._holds(path) else []
        except (OSError, ValueError):
            return []

    def target(self, *parts: str) -> str | None:
        """Where a symbolic link leads, resolved; None where there is none."""
        try:
            path = self.path(*parts)
            return os.path.realpath(path) if os.path.islink(path) and self._holds(path) else None
        except (OSError, ValueError):
            return None

    def _holds(self, path: str) -> bool:
        """Whether a path ends inside the root when all its links are followed."""
        if self._within == os.sep:
            return True
        real = os.path.realpath(path)
        return real == self._within or real.startswith(self._within + os.sep)

    def holds(self, *parts: str) -> bool:
        """Whether there is such a file, folder or link."""
        return os.path.lexists(self.path(*parts))


def numbers_of(text: str | None) -> list[int] | None:
    """`0-3,8` -> [0, 1, 2, 3, 8]; None where nothing is said, or something else."""
    if text is None:
        return None
    found: set[int] = set()
    for part in text.strip().split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            return None
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last - first > MAX_ENTRIES:
            return None
        found.update(range(first, last + 1))
    return sorted(found)


def list_text(numbers: list[int]) -> str:
    """[0, 1, 2, 8] -> `0-2,8`."""
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
