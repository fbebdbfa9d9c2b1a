"""How much work something takes, counted in calls: the same figure on every machine, idle or busy.

Seconds in a test fail on a machine that others use. Calls of Python functions, built-in ones among them, grow with the
work of everything but one long call into C, and two sizes of one input tell how it grows.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")


def counted(work: Callable[[], T]) -> tuple[T, int]:
    """What `work` answers, and how many calls that took; comprehensions count as calls before Python 3.12 alone."""
    calls = 0

    def count(frame: FrameType, event: str, about: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        answer = work()
    finally:
        sys.setprofile(before)
    return answer, calls
