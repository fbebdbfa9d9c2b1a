"""The table of laws. A law is a function of a backend class that raises AssertionError when the law is broken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from executor.device import Backend

Check = Callable[[type[Backend]], None]


@dataclass(frozen=True)
class Law:
    """A law by name. `moves_data`: it does not bind a backend that says that it moves no data."""

    name: str
    check: Check
    moves_data: bool


LAWS: dict[str, Law] = {}


def law(*, moves_data: bool = False) -> Callable[[Check], Check]:
    """Enter a function into the table of laws under its name."""

    def enter(check: Check) -> Check:
        LAWS[check.__name__] = Law(check.__name__, check, moves_data)
        return check

    return enter
