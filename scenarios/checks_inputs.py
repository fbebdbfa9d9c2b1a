"""Whether two documents speak of the same model, fleet, placement and request. Spelling of a path is no difference."""

from __future__ import annotations

from scenarios.case import Case, Document
from scenarios.finding import Finding, failed, inconclusive, passed, waived

_DIGESTED = ("model", "fleet", "placement", "workload")


def digests(inputs: Document | None) -> dict[str, str]:
    """The digest of each input that a document names."""
    held = inputs or {}
    return {
        name: str(held[name]["digest"])
        for name in _DIGESTED
        if isinstance(held.get(name), dict) and held[name].get("digest")
    }


def _differences(case: Case) -> list[str]:
    first, second = (digests(document.get("inputs")) for document in (case.a, case.b))
    return [
        f"{name} {first[name][:12]} -> {second.get(name, 'another')[:12]}"
        for name in _DIGESTED
        if name in first and first[name] != second.get(name)
    ]


def same_inputs(case: Case) -> Finding:
    """Fails when a run was made with another checkpoint, fleet or placement than the plan was made for.

    Another prompt of as many tokens moves the same bytes and is allowed (`run PLAN --prompt`); it is told.
    """
    if not digests(case.b.get("inputs")):
        return waived("the run does not say what it was made with")
    differ = _differences(case)
    grave = [words for words in differ if not words.startswith("workload ")]
    if grave:
        return failed(f"made with other inputs than the plan: {'; '.join(grave)}")
    prompt = case.orders["workload"].get("prompt_ids")
    walked = case.b["tokens"][: len(prompt or ())]
    if differ or (prompt is not None and walked != prompt[: len(walked)]):
        return passed("the plan's model, on the fleet and placement that it names; another prompt of as many tokens")
    return passed("the plan's own model and request, on the fleet and placement that it names")


def inputs_unchanged(case: Case) -> Finding:
    """Tells which inputs differ between two documents of one kind. Bytes and verdicts decide, so it never fails."""
    if not digests(case.a.get("inputs")) or not digests(case.b.get("inputs")):
        return waived("not both documents say what they were made with")
    differ = _differences(case)
    if differ:
        return inconclusive(f"other inputs: {'; '.join(differ)}", required=False)
    return passed("the same model, fleet, placement and request")
