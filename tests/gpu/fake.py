"""The CUDA backend on a driver that is none, as a class that any test can hand to the executor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from executor.backends import cupy_gpu
from executor.device import Backend
from tests.gpu.fake_driver import FakeDriver


@contextmanager
def on(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Backend]]:
    """The backend, for as long as the block lasts, over `driver`."""
    with monkeypatch.context() as patch:
        patch.setattr(cupy_gpu, "make_driver", lambda: driver)
        yield cupy_gpu.Backend
