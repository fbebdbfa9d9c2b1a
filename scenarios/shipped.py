"""The files that come with kvwaybill (`scenarios/library`): their names, where each is, and the words for none."""

from __future__ import annotations

import os
from collections.abc import Sequence

from fleet.errors import DescriptionError
from fleet.yaml_source import nearest, printable

LIBRARY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "library")


def shipped_names(folder: str = "") -> list[str]:
    """Names of the shipped files of a folder of the library, sorted."""
    listed = os.listdir(os.path.join(LIBRARY, folder))
    return sorted(name.removesuffix(".yaml") for name in listed if name.endswith(".yaml"))


def shipped_path(name: str, what: str, folder: str = "") -> str:
    """Where the shipped file of that name is. `what` it is, for messages. DescriptionError where there is none."""
    known = shipped_names(folder)
    if name not in known:
        raise not_shipped(name, what, known)
    return os.path.join(LIBRARY, folder, f"{name}.yaml")


def not_shipped(name: str, what: str, known: Sequence[str]) -> DescriptionError:
    """The error for a name that is neither a file nor one of `known`."""
    hint = f"{nearest(name, known)}; shipped: {', '.join(known)}"
    return DescriptionError.at(printable(name, 200), "", f"no such file, and no shipped {what} of that name{hint}")
