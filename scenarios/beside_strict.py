"""A fast run beside a strict one of the same request: whether the ids are the same, and how far the logits part."""

from __future__ import annotations

import math
import struct
from typing import Any

from scenarios.case import Case, Document
from scenarios.compute_dtype import narrow_of, not_promised
from scenarios.finding import Finding, failed, inconclusive, passed, waived

__all__ = ["beside_strict", "tokens_equal_strict"]


def beside_strict(fast: Document, strict: Document) -> Document:
    """What a fast run's document says of the strict run that was made beside it.

    `first_difference` is the place of the first id that differs, null where none does. `top1_logits` counts the passes
    whose largest logits were set side by side, all of those up to the first other id; `differ` those of other bits.
    `largest_difference` is the largest |fast - strict| among them, null where a logit is no finite number.
    """
    ids = (fast["tokens"], strict["tokens"])
    first = next((i for i, (one, other) in enumerate(zip(*ids, strict=False)) if one != other), None)
    if first is None and len(ids[0]) != len(ids[1]):
        first = min(map(len, ids))
    # A pass that chose another id had logits of the same walk still; what follows has not.
    alike = None if first is None else first + 1 - (len(ids[0]) - len(fast["logits_top1_bits"]))
    pairs = list(zip(fast["logits_top1_bits"], strict["logits_top1_bits"], strict=False))[:alike]
    values = [(_f32(one), _f32(other)) for one, other in pairs]
    finite = all(math.isfinite(value) for pair in values for value in pair)
    return {
        "tokens_equal": first is None,
        "first_difference": first,
        "top1_logits": len(pairs),
        "differ": sum(one != other for one, other in pairs),
        "largest_difference": max((abs(a - b) for a, b in values), default=0.0) if finite else None,
    }


def _f32(bits: str) -> float:
    value: float = struct.unpack(">f", bytes.fromhex(bits))[0]
    return value


def tokens_equal_strict(case: Case) -> Finding:
    """Fails when a fast run walked other ids than the strict run beside it. Its logits are told, not judged.

    Of a run with narrow weights the ids too are told only: waived, whatever they are.
    """
    found: dict[str, Any] | None = case.b.get("beside_strict")
    if not found:
        return inconclusive("no strict run was made beside this one", required=False)
    if dtype := narrow_of(case.b.get("settings")):
        first = found["first_difference"]
        same = "all ids equal the fp32 run's" if first is None else f"from index {first} on other ids than in fp32"
        return waived(not_promised(dtype, f"{same}; {logits_words(found)}"))
    if not found["tokens_equal"]:
        return failed(f"the id at index {found['first_difference']} differs from the strict run's")
    return passed(f"{len(case.b['tokens'])} ids equal; {logits_words(found)}")


def logits_words(found: Document) -> str:
    """`3 of 56 top logits differ, by 1.2e-05 at most`."""
    most = found["largest_difference"]
    by = "some are no finite numbers" if most is None else f"by {most:.3g} at most"
    return f"{found['differ']:,} of {found['top1_logits']:,} top logits differ from the strict run's, {by}"
