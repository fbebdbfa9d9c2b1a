"""What a document says that a gate can fail on: cases with a result, gathered once for JUnit, annotations and Markdown.

The last case of a suite is the document's own verdict, so that a suite fails exactly where the command ends with 1, and
errs exactly where it ends with 3. What was not asked, or does not apply, is skipped and never passed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from fleet.units import format_bytes
from scenarios.reports.read import dumped
from scenarios.words import fix_words, mapping, placed

Document = dict[str, Any]
Result = Literal["passed", "failed", "error", "skipped"]
_WHERE = re.compile(r" \(([^()\n]{1,1024}?):([1-9][0-9]{0,8})(?::([1-9][0-9]{0,8}))?\)$")
_OF_VERDICT: dict[str, Result] = {
    "admitted": "passed", "equal": "passed", "proved": "passed", "caught": "passed", "found": "passed",
    "passed": "passed", "refused": "failed", "different": "failed", "not proved": "failed", "missed": "failed",
    "failed": "failed", "none": "failed", "unverified": "error", "inconclusive": "error", "unknown": "error",
    "waived": "skipped",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Gate:
    """One case. `error`: it could not be told. `file` and `line` where the text named them, e.g. of a fleet."""

    name: str
    result: Result
    detail: str = ""
    file: str | None = None
    line: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Suite:
    """The cases of one document. `warnings` are sentences that no case fails on."""

    name: str
    gates: tuple[Gate, ...]
    warnings: tuple[str, ...] = ()

    def count(self, result: Result) -> int:
        return sum(gate.result == result for gate in self.gates)


def suites_of(kind: str, document: Document, source: str) -> list[Suite]:
    """The suites of a document of `scenarios.reports.read`; none of records, on which nothing can fail."""
    make = _MAKERS.get(kind)
    return [] if make is None else make(document, source)


def result_of(verdict: str) -> Result:
    """A word that is no known verdict could not be told: never passed."""
    return _OF_VERDICT.get(verdict, "error")


def located(detail: str) -> tuple[str | None, int | None]:
    """(file, line) of a sentence that ends with `(fleet.yaml:42)` or `(fleet.yaml:42:5)`."""
    found = _WHERE.search(detail)
    return (found[1], int(found[2])) if found else (None, None)


def _gate(name: str, result: Result, detail: str) -> Gate:
    file, line = located(detail)
    return Gate(name=name, result=result, detail=detail, file=file, line=line)


def _plan(plan: Document, source: str) -> list[Suite]:
    about = placed(mapping(plan.get("inputs")), mapping(plan.get("placement")))
    reasons = [reason for reason in plan.get("reasons") or [] if reason.get("severity") != "warning"]
    told: dict[str, list[Document]] = {}
    for reason in reasons:
        told.setdefault(str(reason.get("device") or _edge(reason) or ""), []).append(reason)
    gates = []
    for entry in plan.get("memory") or []:
        gates += _memory(entry, told.pop(entry["device"], []))
    for where, left in told.items():
        gates += [_reason(f"{reason['code']} {where}".rstrip(), reason) for reason in left]
    gates.append(Gate(name="verdict", result=result_of(plan["verdict"]), detail=plan["verdict"]))
    warnings = [*(plan.get("warnings") or []), *_warned(plan)]
    return [Suite(name=f"admit: {about or source}", gates=tuple(gates), warnings=tuple(dict.fromkeys(warnings)))]


def _warned(plan: Document) -> list[str]:
    return [reason["message"] for reason in plan.get("reasons") or [] if reason.get("severity") == "warning"]


def _edge(reason: Document) -> str | None:
    edge = reason.get("edge")
    return " -> ".join(map(str, edge)) if isinstance(edge, list) else edge


def _reason(name: str, reason: Document) -> Gate:
    fix = reason.get("fix")
    words = reason["message"]
    gate = _gate(name, "error" if reason.get("severity") == "unknown" else "failed", words)
    return replace(gate, detail=f"{words}; fix: {fix_words(fix)}") if fix else gate


def _memory(entry: Document, reasons: list[Document]) -> list[Gate]:
    """A case a device: each of its reasons, or its slack. A host arena without a capacity has no verdict."""
    name = f"memory of {entry['device']}"
    if reasons:
        return [_reason(f"{name}: {reason['code']}", reason) for reason in reasons]
    if entry["slack_bytes"] is None:
        detail = "no capacity is stated, so nothing is judged here"
        return [Gate(name=name, result="skipped", detail=detail)]
    detail = f"needs {format_bytes(entry['total_bytes'])} of {format_bytes(entry['budget_bytes'])}"
    return [Gate(name=name, result="passed" if entry["slack_bytes"] >= 0 else "failed", detail=detail)]


def _admissions(document: Document, source: str) -> list[Suite]:
    return [suite for plan in document["plans"] for suite in _plan(plan, source)]


def checks_of(checks: list[Document]) -> list[Gate]:
    """A case a check. One that applies and cannot be told is an error where it is required, else skipped."""
    gates = []
    for check in checks:
        result = result_of(check["result"])
        if result == "error" and not check["required"]:
            result = "skipped"
        gates.append(_gate(check["name"], result, check["detail"]))
    return gates


def _comparison(document: Document, source: str) -> list[Suite]:
    return [_compared(f"compare: {source}", document)]


def _compared(name: str, comparison: Document) -> Suite:
    verdict = comparison["verdict"]
    last = Gate(name="verdict", result=result_of(verdict), detail=verdict)
    return Suite(name=name, gates=(*checks_of(comparison["checks"]), last))


def _run(run: Document, source: str) -> list[Suite]:
    inputs = mapping(run.get("inputs"))
    about = placed(inputs, mapping(inputs.get("placement"))) or source
    comparison = run.get("comparison")
    if comparison:
        return [replace(_compared(f"run: {about}", comparison), warnings=tuple(run.get("warnings") or ()))]
    gate = Gate(name="verdict", result="skipped", detail="the run was set beside no plan")
    return [Suite(name=f"run: {about}", gates=(gate,), warnings=tuple(run.get("warnings") or ()))]


def _proof(proof: Document, source: str) -> list[Suite]:
    suites = [_compared(f"prove: {entry['name']}", entry["comparison"]) for entry in proof.get("comparisons") or []]
    gates = [_gate(row["sabotage"], result_of(row["verdict"]), str(row.get("detail") or "")) for row in proof["matrix"]]
    gates += [
        Gate(name=f"{name} can fail", result="failed", detail="passed, but no sabotage made it fail")
        for name in proof.get("never_failed") or []
    ]
    gates.append(Gate(name="verdict", result=result_of(proof["verdict"]), detail=proof["verdict"]))
    return [*suites, Suite(name="prove: sabotages", gates=tuple(gates))]


def _simulation(document: Document, source: str) -> list[Suite]:
    """A simulation answers; it judges nothing. What was not finished is told, and shares are no bound of ours."""
    counts, good = document["requests"], document["goodput"]
    detail = f"finished {counts['finished']:,} of {counts['all']:,} requests"
    if good is not None:
        detail += f"; {good['met']:,} met every SLO"
    gate = Gate(name="verdict", result="passed", detail=f"simulated: {detail}")
    name = f"simulate: {document['name'] or source}"
    return [Suite(name=name, gates=(gate,), warnings=tuple(document["unfinished"]))]


def _sweep(document: Document, source: str) -> list[Suite]:
    """A case a demand: whether any fleet keeps its SLOs. Rows are answers, not gates: those that miss are skipped."""
    rows = {row["case"]: row for row in document["rows"]}
    gates = []
    for group in document["groups"]:
        asked = ", ".join(f"{name} {dumped(value)}" for name, value in group["asked"].items()) or "all cases"
        best = group.get("best")
        if best is None:
            gates.append(Gate(name=asked, result="skipped", detail="no SLO was given, so nothing is judged"))
        else:
            case = rows.get(best.get("case") or 0)
            detail = (
                f"smallest fleet that keeps the SLOs: case {case['case']}, {case['devices']} devices" if case else ""
            )
            told = {"none": "no case keeps the SLOs", "unknown": "no case is known to keep the SLOs"}
            gates.append(Gate(name=asked, result=result_of(best["verdict"]), detail=told.get(best["verdict"], detail)))
    for row in document["rows"]:
        fields = ", ".join(f"{name} {dumped(value)}" for name, value in row["fields"].items())
        met = (row.get("slo") or {}).get("met")
        kept = row["verdict"] == "admitted" and met is True
        detail = row["verdict"] + ("" if met is None else ", SLOs kept" if met else ", SLOs missed")
        gates.append(Gate(name=f"case {row['case']}: {fields}", result="passed" if kept else "skipped", detail=detail))
    return [Suite(name=f"sweep: {document['name'] or source}", gates=tuple(gates))]


def _history(document: Document, source: str) -> list[Suite]:
    """A case a class: failed where its error drifts, skipped where too few runs are known to say so."""
    results: dict[str, Result] = {"up": "failed", "down": "failed", "none": "passed"}
    suites = []
    for group in document["groups"]:
        gates = []
        for row in group["classes"]:
            detail = f"drift {row['drift']} over {row['runs']} runs"
            result = results.get(row["drift"], "skipped")
            gates.append(Gate(name=f"{row['class']}, {row['figure']}", result=result, detail=detail))
        bad = any(gate.result == "failed" for gate in gates)
        gates.append(Gate(name="verdict", result="failed" if bad else "passed", detail="drifts" if bad else "no drift"))
        suites.append(Suite(name=f"history: {document['by']} {group['key'][:12]}", gates=tuple(gates)))
    return suites


_MAKERS: dict[str, Callable[[Document, str], list[Suite]]] = {
    "plan": _plan, "admissions": _admissions, "comparison": _comparison, "run": _run, "proof": _proof,
    "simulation": _simulation, "sweep-result": _sweep, "history": _history,
}  # fmt: skip
