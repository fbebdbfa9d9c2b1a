"""What GPU tests need of the machine, and the sentence with which they are skipped."""

from __future__ import annotations

from functools import cache

import pytest

from executor.discovery import load_backend, probe


@cache
def cards() -> list[str] | str:
    """The CUDA devices of this machine by name, or why there is none."""
    return probe("cupy")


def needs(count: int) -> list[pytest.MarkDecorator]:
    """Marks of a test that needs `count` cards: skipped, with the reason, where there are fewer."""
    found = cards()
    reason = found if isinstance(found, str) else f"{count} CUDA devices are needed, this machine has {len(found)}"
    return [pytest.mark.gpu, pytest.mark.skipif(isinstance(found, str) or len(found) < count, reason=reason)]


def backend(devices: tuple[str, str] = ("gpu:0", "gpu:0")) -> type:
    """The CUDA backend; where the devices are more than the cards, with one card playing several."""
    made = load_backend("cupy")
    found = cards()
    highest = max((int(name.partition(":")[2]) for name in devices if name.startswith("gpu")), default=0)
    emulated = isinstance(found, list) and highest >= len(found)
    return made.emulating() if emulated else made  # type: ignore[attr-defined,no-any-return]  # the CUDA backend's own
