"""Which backends there are: each file of `executor/backends` is one, found by its name.

The backend's name is the file's name up to the first underscore: `numba_cpu.py` is `numba`. Listing loads none of them.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType
from typing import TYPE_CHECKING

import executor.backends
from fleet.errors import BackendUnavailableError, DescriptionError

if TYPE_CHECKING:
    from executor.device import Backend


def find_backends() -> list[str]:
    """Names of all backends, sorted."""
    return sorted(_files())


def load_backend(name: str) -> type[Backend]:
    """The backend class of that name.

    Raises DescriptionError for an unknown name, and BackendUnavailableError when a library that it needs is not there.
    """
    found: type[Backend] = _module(name).Backend
    return found


def probe(name: str) -> list[str] | str:
    """The devices on which this backend can run here, by name, or one sentence why it cannot."""
    try:
        devices: list[str] | str = _module(name).probe()
    except BackendUnavailableError as error:
        return str(error)
    return devices


def _files() -> dict[str, str]:
    return {found.name.partition("_")[0]: found.name for found in pkgutil.iter_modules(executor.backends.__path__)}


def _module(name: str) -> ModuleType:
    files = _files()
    if name not in files:
        raise DescriptionError.at("backend", name, f"no such backend; known: {', '.join(sorted(files))}")
    try:
        return importlib.import_module(f"executor.backends.{files[name]}")
    except ImportError as error:
        raise BackendUnavailableError(f"backend {name} needs a library that is not installed here: {error}") from error
