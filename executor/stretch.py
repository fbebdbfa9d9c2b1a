"""A stretch of forward passes that is walked in one compiled call, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from executor.instance import Entry, Phase


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """`passes` forward passes of a phase from position `first` on, `chunk` of them a call (decode: 1).

    Prefill: `ids` are their tokens, and logits come from the last call where they are wanted. Decode: `ids` is the one
    token to begin with; it ends after BOS. `continues`: decode goes on from what it chose last, on the device.
    """

    phase: Phase
    order: int
    first: int
    passes: int
    ids: tuple[int, ...]
    chunk: int = 1
    wants_logits: bool = True
    continues: bool = False


@dataclass(kw_only=True, slots=True)
class Walked:
    """What came of a stretch: ids chosen, the bits of their logits, passes made, and the operations really called.

    `programs` holds those of one call with logits (True) and of one without (False); `odd` those of the first call that
    differed from its like, None where none did.
    """

    chosen: list[int] = field(default_factory=list)
    top1_bits: list[int] = field(default_factory=list)
    passes: int = 0
    programs: dict[bool, list[Entry]] = field(default_factory=dict)
    odd: list[Entry] | None = None

    def then(self, later: Walked) -> Walked:
        """Both as one, where `later` went on from here."""
        odd = self.odd if self.odd is not None else later.odd
        for wants_logits, operations in later.programs.items():
            known = self.programs.get(wants_logits)
            if odd is None and known is not None and known != operations:
                odd = operations
        return Walked(
            chosen=self.chosen + later.chosen, top1_bits=self.top1_bits + later.top1_bits,
            passes=self.passes + later.passes, programs=later.programs | self.programs, odd=odd,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Span:
    """Addresses [start, end) that belong to a device: what the account of a compiled call is made by."""

    start: int
    end: int
    device: str
