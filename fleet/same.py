"""A key that compares by being the same object: what is worked out of a frozen value is kept without hashing it whole.

A changed value is another object, so an answer that is kept can never be of an older one; the key holds its object, so
that no other can take its place in memory.
"""

from __future__ import annotations

from typing import Generic, TypeVar

Held = TypeVar("Held")


class Same(Generic[Held]):
    """A key of `functools.lru_cache` around a frozen `value`, such as a model with thousands of tensors."""

    __slots__ = ("value",)

    def __init__(self, value: Held) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.value is self.value
