"""What a check answers: a result, whether it is required here, and a sentence with figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from scenarios.case import Case

Result = Literal["passed", "failed", "inconclusive", "waived"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer of one check. `required` is False where the check does not apply."""

    result: Result
    detail: str
    required: bool = True


def passed(detail: str) -> Finding:
    return Finding("passed", detail)


def failed(detail: str) -> Finding:
    return Finding("failed", detail)


def inconclusive(detail: str, *, required: bool = True) -> Finding:
    """Applies, but cannot be told with what is here."""
    return Finding("inconclusive", detail, required)


def waived(detail: str) -> Finding:
    """Does not apply here."""
    return Finding("waived", detail, required=False)


def no_decode(case: Case) -> Finding | None:
    """Inconclusive where no decode pass was planned (N <= P) or made (BOS came first); None otherwise."""
    assert case.expected is not None
    if case.expected.decodes:
        return None
    if case.expected.full["decode"]:
        return inconclusive("BOS stopped the run before its first decode pass, so nothing about the split can be told")
    return inconclusive(
        f"N <= P: {case.expected.full['prefill']} passes over {case.expected.prompt_tokens} prompt tokens leave none to"
        " decode; ask for more steps"
    )
