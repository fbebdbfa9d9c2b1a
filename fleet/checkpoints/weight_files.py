"""Which files a folder or an index may lead to: those within it, and nothing else on the machine.

A folder of the Hugging Face cache keeps its files as links into `blobs` beside `snapshots`; links elsewhere out of
a folder are refused, for a downloaded folder is not trusted to name files of this machine.
"""

from __future__ import annotations

import os

from fleet.checkpoints.json_text import shorten
from fleet.checkpoints.source import shown
from fleet.errors import Fault

MAX_FILES = 4096
"""Most weight files of one model; DeepSeek-V3 has 163."""


def plain_name(name: object) -> bool:
    """Whether `name` is a file name and no path: no separator, no parent, no drive, nothing unprintable."""
    return (
        isinstance(name, str)
        and 0 < len(name) <= 255
        and name not in (".", "..")
        and not set(name) & set("/\\:")
        and name.isprintable()
    )


def inside(folder: str, name: str) -> str | Fault:
    """The real path of the file `name` of `folder`, or the fault that it is absent, or a link to somewhere else."""
    path = os.path.join(folder, name)
    real = os.path.realpath(path)
    told = shown(path)
    if not os.path.exists(real):
        if os.path.islink(path):
            return Fault(told, "", "is a link to a file that is absent; download it again")
        return Fault(told, "", "no such file; download it again")
    homes = [os.path.realpath(folder), *_blobs(folder)]
    if any(os.path.commonpath((home, real)) == home for home in homes):
        return real
    return Fault(
        told, "", f"is a link out of its folder, to {shorten(shown(real))}: not followed; put the file itself there"
    )


def _blobs(folder: str) -> list[str]:
    """`blobs` of the cache that `folder` is a snapshot of: .../models--ORG--NAME/snapshots/REVISION."""
    snapshots = os.path.dirname(os.path.realpath(folder))
    repository = os.path.dirname(snapshots)
    if os.path.basename(snapshots) == "snapshots" and os.path.basename(repository).startswith("models--"):
        blobs = os.path.join(repository, "blobs")
        # A `blobs` that is itself a link would lead out again.
        return [blobs] if os.path.realpath(blobs) == blobs else []
    return []
