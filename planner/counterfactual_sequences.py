"""How many sequences at once are admitted, and what one more is short of: `41 fit; 42 is short by 118 MiB on gpu:1`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fleet.errors import DescriptionError
from planner.admit import Admission, Ask, Reason, admit
from planner.counterfactual import is_admitted, with_batch
from planner.request import MAX_COUNT


@dataclass(frozen=True, kw_only=True, slots=True)
class Sequences:
    """`fit` sequences are admitted and `fit` + 1 are not; None where not even one can be judged.

    `short`: the reasons against one more. `why`: in words, where there are none: a request that cannot be meant, an
    unknown, or a limit of counting.
    """

    fit: int | None
    short: tuple[Reason, ...] = ()
    why: str = ""


def most_sequences(ask: Ask) -> Sequences:
    """The largest admitted batch of a request. What a plan holds grows with the batch, so bisection is exact.

    Raises DescriptionError where one sequence cannot be meant.
    """
    one = admit(with_batch(ask, 1))
    if one.verdict == "unverified":
        return Sequences(fit=None, why="; ".join(r.message for r in one.reasons if r.severity == "unknown"))
    if one.verdict == "refused":
        return Sequences(fit=0, short=_errors(one))
    fit, beyond = 1, 2
    while beyond <= MAX_COUNT and is_admitted(with_batch(ask, beyond)):
        fit, beyond = beyond, 2 * beyond
    if beyond > MAX_COUNT:
        return Sequences(fit=fit, why=f"more than {fit:,} sequences are not counted")
    while beyond - fit > 1:
        middle = (fit + beyond) // 2
        if is_admitted(with_batch(ask, middle)):
            fit = middle
        else:
            beyond = middle
    try:
        return Sequences(fit=fit, short=_errors(admit(with_batch(ask, beyond))))
    except DescriptionError as error:
        return Sequences(fit=fit, why="; ".join(fault.message for fault in error.faults))


def _errors(admission: Admission) -> tuple[Reason, ...]:
    return tuple(reason for reason in admission.reasons if reason.severity == "error")


def sequences_document(found: Sequences, asked: str) -> dict[str, Any]:
    """`sequences` of a plan: `asked` is a number or max; `short` what one more lacks, by device."""
    return {
        "asked": asked,
        "fit": found.fit,
        "short": [
            {
                "code": reason.code, "device": reason.device, "needed_bytes": reason.needed_bytes,
                "available_bytes": reason.available_bytes, "shortfall_bytes": reason.shortfall_bytes,
            }
            for reason in found.short
        ],
        "words": sequences_words(found),
    }  # fmt: skip


def sequences_words(found: Sequences) -> str:
    """`41 fit; 42 is short by 123,731,968 B (118 MiB) on gpu:1`."""
    from fleet.units import format_bytes

    if found.fit is None:
        return f"how many fit cannot be told: {found.why}"
    short = [
        f"short by {format_bytes(reason.shortfall_bytes)}" + (f" on {reason.device}" if reason.device else "")
        for reason in found.short
        if reason.shortfall_bytes is not None
    ]
    lacks = " and ".join(short) or found.why or "; ".join(reason.message for reason in found.short)
    number = found.fit + 1
    return f"{found.fit:,} fit; {number:,} {'is' if short else 'would not do:'} {lacks}"
