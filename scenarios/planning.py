"""Question -> plan: prepare, admit, explain a refusal, write it down. The one way to a plan document."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from planner.admit import Admission, admit
from planner.plan import plan_document
from planner.program import dispatches_per_pass
from scenarios.documents import plan_id
from scenarios.limits import plan_limits
from scenarios.wanted import Prepared

if TYPE_CHECKING:
    from fleet.launch import Launch
    from planner.engines.prints import Range


def make_plan(prepared: Prepared, launches: tuple[Launch, ...] = (), stated: Range | None = None) -> dict[str, Any]:
    """The contract's **plan** for a prepared question: whatever the verdict, with its reasons and its `id`.

    `launches` are the serving commands that the question was read from, `stated` what an engine said of its memory.
    """
    admission, changes, weighed = _answered(prepared)
    reasons = tuple(
        replace(reason, fix=_changed(reason.fix, prepared)) if reason.fix else reason for reason in admission.reasons
    )
    admission = replace(admission, reasons=reasons)
    document = plan_document(admission, prepared.inputs, [_changed(change, prepared) for change in changes], [])
    if weighed:
        document["counterfactuals"] = [
            each | {"change": _changed(each["change"], prepared)} if each["change"] else each for each in weighed
        ]
    document["defaults"] = list(prepared.defaults)
    document["warnings"] = [
        *prepared.ask.fleet.warnings, *prepared.warnings, *prepared.ask.model.warnings, *_ends_early(admission),
        *_clamped(admission),
    ]  # fmt: skip
    if prepared.solve is not None:
        from planner.solve import solution_document, solve

        document["solved"] = solution_document(solve(admission, *prepared.solve))
    if prepared.sequences is not None:
        document["sequences"] = prepared.sequences
    attention = None if prepared.ask.model.unknown else prepared.ask.request.attention
    model = prepared.ask.model
    document["limits"] = plan_limits(
        attention, assumed=_assumes(admission), shared="contention" in document,
        other_caches=not model.unknown and not model.is_plain_cache, workers="workers" in document,
        other_program="memory" in document and dispatches_per_pass(model) is None,
    )  # fmt: skip
    if launches:
        from scenarios.launching import launch_document, launch_warnings

        document["warnings"] += launch_warnings(launches)
        document["launch"] = launch_document(document, prepared.ask.model, launches, stated)
    document["id"] = plan_id(document)
    first = ("schema", "verdict", "id")
    return {name: document[name] for name in first} | {k: v for k, v in document.items() if k not in first}


def _answered(prepared: Prepared) -> tuple[Admission, tuple[dict[str, Any], ...], tuple[dict[str, Any], ...]]:
    """The admission; of a refusal with all that would be admitted instead, which only a refusal loads."""
    admission = admit(prepared.ask)
    if admission.verdict != "refused":
        return admission, (), ()
    from planner.fixes import counterfactuals

    return counterfactuals(admission)


def _assumes(admission: Admission) -> bool:
    """Whether a leg goes over a link that was assumed."""
    rows = () if admission.prediction is None else admission.prediction.rows
    return any(leg.assumed for row in rows for leg in row.legs or ())


def _ends_early(admission: Admission) -> list[str]:
    """A warning where the passes end within the prompt or with it: such a plan hands nothing over."""
    workload, model = admission.workload, admission.ask.model
    if workload is None or workload.hands_over:
        return []
    prompt, passes = workload.prompt_tokens, workload.passes
    if passes < prompt:
        told = (
            f"{passes:,} passes end inside the prompt of {prompt:,} tokens: nothing is sampled, decoded or handed off"
        )
    else:
        told = f"{passes:,} passes end with the prompt: one token is sampled, none is decoded and nothing is handed off"
    if prompt >= model.seq_len:
        return [f"{told}; the model has {model.seq_len:,} positions, so give a prompt of {model.seq_len - 1:,} at most"]
    request = admission.ask.request
    if request.steps is None and request.new_tokens is None:
        return [f"{told}; say how long the answer is: --osl N (or --steps {prompt + 1} or more)"]
    flag = "--steps" if request.new_tokens is None else "--new-tokens"
    return [f"{told}; ask for {flag} {prompt + 1 if flag == '--steps' else 2} or more"]


def _clamped(admission: Admission) -> list[str]:
    """A warning where more passes were asked for than the model has positions: a plan cuts them as llama2.c does."""
    asked, model = admission.ask.request.steps, admission.ask.model
    if asked is None or admission.workload is None or asked <= model.seq_len:
        return []
    return [
        f"{asked:,} passes were asked for; the model has {model.seq_len:,} positions, so {model.seq_len:,} are planned"
    ]


def _changed(fix: dict[str, Any], prepared: Prepared) -> dict[str, Any]:
    """A change in the flags of this very question."""
    from scenarios.fix_flags import in_words, with_degrees

    told = _pinned(with_degrees(fix, prepared.ask.placement, prepared.degrees), prepared)
    return told if prepared.sequences is None else in_words(told, {"--batch": "--max-sequences"})


def _pinned(fix: dict[str, Any], prepared: Prepared) -> dict[str, Any]:
    """A change of one phase's device, with the other phase's stated too where nobody had: it would be chosen anew."""
    flags = {change.get("flag") for change in (fix, *fix.get("and", []))}
    pins = [
        {"flag": f"--{phase}", "from": None, "to": getattr(prepared.ask.placement, phase)}
        for phase, other in (("prefill", "decode"), ("decode", "prefill"))
        if f"--{other}" in flags and f"--{phase}" not in flags and phase in prepared.chosen
    ]
    return fix | {"and": [*fix.get("and", []), *pins]} if pins else fix
