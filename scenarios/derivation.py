"""One explained figure: what `kvwaybill explain` is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Document = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Derivation:
    """One figure: what it is, the terms whose sum it is, in words and numbers, the figure, and whether it follows.

    `about` are the words by which it can be asked for. `bytes` is None for a figure that is no bytes or is unknown;
    `figure` says in words one that is no bytes.
    """

    subject: str
    terms: tuple[str, ...]
    bytes: int | None
    follows: bool = True
    about: frozenset[str] = frozenset()
    figure: str | None = None

    @property
    def formula(self) -> str:
        """The terms as one sum."""
        return " + ".join(self.terms)
