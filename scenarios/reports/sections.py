"""What a report says in words and tables: sections of a document, gathered once for Markdown and HTML.

A section holds finished cells, so that both formats print the same figures. Bytes are exact, with the rounded figure
behind; what is unknown says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fleet.units import format_bytes, format_rate
from scenarios.report_proof import LEGEND, mark
from scenarios.reports.gates import checks_of, suites_of
from scenarios.reports.history_text import history_page
from scenarios.reports.page import Page, Section, section
from scenarios.reports.read import dumped, figure_of, is_time, kept
from scenarios.words import (
    count_of,
    fix_words,
    mapping,
    placed,
    request_words,
    seconds_of,
    time_words,
    without_repeats,
)

Document = dict[str, Any]


def page_of(kind: str, document: Document, source: str) -> Page:
    """The page of a document of `scenarios.reports.read`. `source` is how it was named."""
    return _PAGES[kind](document, source)


def _asked(document: Document) -> tuple[str, ...]:
    inputs = mapping(document.get("inputs"))
    where = placed(inputs, mapping(document.get("placement") or inputs.get("placement")))
    return tuple(words for words in (where, ", ".join(request_words(inputs))) if words)


def _plan(plan: Document, source: str) -> Page:
    sections = [_reasons(plan), _memory(plan), _rows(plan), _time(plan)]
    for title, name in (("Chosen, because nobody said otherwise", "defaults"), ("Warnings", "warnings")):
        if plan.get(name):
            sections.append(Section(title=title, words=tuple(plan[name])))
    return Page(
        title=f"Plan {source}",
        verdict=plan["verdict"],
        about=(*_asked(plan), f"plan {plan['id'][:12]}"),
        sections=tuple(part for part in sections if part is not None),
        limits=tuple(plan["limits"]),
    )


def _reasons(plan: Document) -> Section | None:
    rows = [
        (
            reason["code"], reason.get("severity") or "error", reason["message"],
            fix_words(reason["fix"]) if reason.get("fix") else "-",
        )
        for reason in plan.get("reasons") or []
    ]  # fmt: skip
    return section("Reasons", ("code", "severity", "what", "fix"), rows) if rows else None


def _memory(plan: Document) -> Section | None:
    rows = []
    for entry in plan.get("memory") or []:
        lines = [f"{name} {format_bytes(nbytes)}" for name, nbytes in entry["resident"].items() if nbytes != 0]
        figures = (format_bytes(entry[f"{name}_bytes"]) for name in ("total", "budget", "capacity", "slack"))
        rows.append((entry["device"], *figures, "; ".join(lines)))
    heads = ("device", ">needed", ">budget", ">capacity", ">slack", "lines")
    return section("Memory", heads, rows, "memory") if rows else None


def _ends(row: Document) -> str:
    return f"{row['src']} -> {row['dst']}"


def _rows(plan: Document) -> Section | None:
    rows = [
        (row["phase"], row["tensor"], _ends(row), row["kind"], format_bytes(row["bytes"]), count_of(row["copies"]),
         seconds_of(row))
        for row in plan.get("waybill") or []
    ]  # fmt: skip
    heads = ("phase", "tensor", "edge", "kind", ">bytes", ">copies", ">time")
    return section("Waybill", heads, rows, "edges") if rows else None


def _time(plan: Document) -> Section | None:
    time = mapping(plan.get("time"))
    rows = []
    for name, label in (("ttft", "TTFT"), ("tpot", "TPOT")):
        if f"{name}_s" in time:
            rows.append(
                (label, seconds_of({"seconds": time[f"{name}_s"], "lower_bound": time.get(f"{name}_lower_bound")}))
            )
    if not rows:
        return None
    basis = [str(time["basis"])] if time.get("basis") else []
    return section("Time", ("", ">predicted, unscored"), rows, "timeline", *basis, *(time.get("unpriced") or ()))


def _admissions(document: Document, source: str) -> Page:
    pages = [_plan(plan, source) for plan in document["plans"]]
    rows = [(page.about[0] if page.about else "?", page.verdict or "?") for page in pages]
    inner = [
        Section(title=f"{page.about[0] if page.about else '?'}: {part.title}", words=part.words, headings=part.headings,
                rows=part.rows)
        for page in pages
        for part in page.sections
    ]  # fmt: skip
    return Page(
        title=f"Fleets {source}", verdict=None, about=(),
        sections=(section("Verdicts", ("fleet", "verdict"), rows), *inner),
        limits=tuple(dict.fromkeys(limit for page in pages for limit in page.limits)),
    )  # fmt: skip


def _comparison(document: Document, source: str) -> Page:
    named = [
        f"{letter}: {told.get('path')}" for letter, told in zip("AB", document.get("documents") or [], strict=False)
    ]
    about = named or [" beside ".join(document.get("compared") or [])]
    return Page(
        title=f"Comparison {source}", verdict=document["verdict"], about=tuple(words for words in about if words),
        sections=_compared(document), limits=tuple(document["limits"]),
    )  # fmt: skip


def _changed(document: Document) -> tuple[Section, ...]:
    """What changed from plan to plan, a section a group."""
    changes = document["changes"]
    sections = [
        section(
            group.capitalize(), ("", "what", "before", "after", "why"),
            [[str(change[key] or "-") for key in ("sign", "what", "before", "after", "why")]
             for change in changes if change["group"] == group],
        )
        for group in dict.fromkeys(str(change["group"]) for change in changes)
    ]  # fmt: skip
    same = Section(title="No changes", words=("Both plans say the same of every input, byte, copy and time.",))
    return (*(sections or [same]), checks(document["checks"], "Checks"))


def _told(row: Document, who: str) -> str:
    """Bytes, or the interval that a printed figure stands for."""
    value, ends = row[f"{who}_bytes"], row.get(f"{who}_bytes_interval")
    if value is None and ends:
        return f"{ends[0]:,} to {ends[1]:,} B"
    return "-" if value is None else format_bytes(value)


def _compared(document: Document) -> tuple[Section, ...]:
    if document.get("changes") is not None:
        return _changed(document)
    rows = []
    for row in document["rows"]:
        figures = (_told(row, who) for who in WHO)
        copies = "/".join(count_of(row[f"{who}_copies"]) for who in WHO)
        rows.append(
            (row["phase"], row["tensor"], _ends(row), row["kind"], *figures, copies, row["witness"], row["verdict"])
        )
    heads = ("phase", "tensor", "edge", "kind", *(f">{who}" for who in WHO), ">copies", "witness", "verdict")
    return (section("Predicted beside observed", heads, rows, "edges"), checks(document["checks"], "Checks"))


WHO = ("predicted", "counted", "observed")


def checks(found: list[Document], title: str) -> Section:
    """Every check with its result and its sentence."""
    told = zip(checks_of(found), found, strict=True)
    rows = [(gate.name, check["result"] if check["required"] else f"{check['result']}, not required", gate.detail)
            for gate, check in told]  # fmt: skip
    return section(title, ("check", "result", "what"), rows)


def _run(run: Document, source: str) -> Page:
    comparison = run.get("comparison")
    passes = run["passes"]
    made = f"{run['n_prompt_tokens']:,} prompt tokens, {len(run['generated_tokens']):,} chosen, "
    made += f"{passes['prefill']:,} prefill and {passes['decode']:,} decode passes on {run['backend']} ({run['tier']})"
    said = " ".join(without_repeats(line) for line in (run.get("text") or "").splitlines())
    sections = [Section(title="Text", words=(said,))] if said else []
    sections += _compared(comparison) if comparison else []
    if run.get("spans"):
        sections.append(_spans(run))
    high = [(entry["device"], format_bytes(entry["high_water_bytes"])) for entry in run["resident"]]
    sections.append(section("High-water mark", ("arena", ">buffers"), high))
    return Page(
        title=f"Run {source}", verdict=comparison["verdict"] if comparison else None, about=(*_asked(run), made),
        sections=tuple(sections), limits=tuple(run["limits"]),
    )  # fmt: skip


def _spans(run: Document) -> Section:
    rows = [
        (span["phase"], span.get("tensor") or "-", where_of(span), f"{span['start_ns'] / 1e6:,.3f} ms",
         f"{(span['end_ns'] - span['start_ns']) / 1e6:,.3f} ms")
        for span in run["spans"]
    ]  # fmt: skip
    words = "From call to return, by the clock of the host; looks of witnesses lie between the spans."
    emulated = ("Emulated: these are times of one processor, not of the fleet's.",) if run["tier"] == "emulated" else ()
    return section("When", ("phase", "tensor", "where", ">start", ">took"), rows, "timeline", words, *emulated)


def where_of(span: Document) -> str:
    """The device of a phase, or the edge of a copy."""
    return span["dst"] if not span.get("src") else f"{span['src']} -> {span['dst']}"


def _proof(proof: Document, source: str) -> Page:
    matrix = proof["matrix"]
    tried = [row for row in matrix if row["verdict"] != "waived"]
    caught = sum(row["verdict"] == "caught" for row in tried)
    names = list(dict.fromkeys(n for row in matrix for key in ("must_fail", "must_pass", "failed") for n in row[key]))
    cells = [(name, *(mark(name, row)[0] for row in matrix)) for name in names]
    heads = ("check", *(str(number) for number in range(1, len(matrix) + 1)))
    rows = [
        (str(number), row["verdict"], row["sabotage"], ", ".join(row["failed"]) or str(row.get("detail") or "-"))
        for number, row in enumerate(matrix, start=1)
    ]
    inner = [
        checks(entry["comparison"]["checks"], f"Checks of {entry['name']}") for entry in proof.get("comparisons") or []
    ]
    return Page(
        title=f"Proof {source}", verdict=proof["verdict"],
        about=(f"{caught} of {len(tried)} sabotages caught as they must be",),
        sections=(
            *inner, section("Checks x sabotages", heads, cells, "matrix", f"{LEGEND}."),
            section("Sabotages", ("", "verdict", "name", "what failed"), rows),
        ),
        limits=tuple(proof.get("limits") or ()),
    )  # fmt: skip


def _simulation(document: Document, source: str) -> Page:
    inputs, counts = document["inputs"], document["requests"]
    about = [
        f"{inputs['model']['name']} on {inputs['fleet']['name']}; {inputs['traffic']['source']}",
        f"finished {counts['finished']:,} of {counts['all']:,} in {time_words(document['duration_s'])}",
    ]
    if document["goodput"] is not None:
        bounds = ", ".join(f"{n} <= {time_words(v)}" for n, v in inputs["slo"].items() if v is not None)
        about.append(f"{document['goodput']['met']:,} requests met {bounds}")
    latency = [
        (name, *("-" if row[key] is None else time_words(row[key]) for key in ("mean_s", "p50_s", "p90_s", "p99_s")),
         f"{row['count']:,}")
        for name, row in document["latency"].items()
    ]  # fmt: skip
    edges = [
        (_ends(row), row["kind"], format_bytes(row["bytes"]), f"{row['copies']:,}", f"{100 * row['utilisation']:.2f} %",
         format_rate(int(max(row["bytes_per_s_over_time"], default=0)), digits=4))
        for row in sorted(document["edges"], key=lambda row: (-row["bytes"], row["src"], row["dst"]))
    ]  # fmt: skip
    workers = [
        (row["device"], row["phase"], f"{100 * row['busy']:.2f} %", f"{row['steps']:,}",
         *("-" if held is None else f"{held:,} {unit}" for held in (peak, room)))
        for row, (unit, room, peak) in ((row, kept(row)) for row in document["workers"])
    ]  # fmt: skip
    sections = [
        section("Latency", ("", ">mean", ">P50", ">P90", ">P99", ">of"), latency, "latency"),
        section("Handoffs", ("edge", "kind", ">bytes", ">copies", ">busy", ">highest rate"), edges, "links"),
        section("Workers", ("worker", "phase", ">busy", ">steps", ">peak KV", ">KV"), workers, "workers"),
    ]
    if document["unfinished"]:
        sections.append(Section(title="Not finished", words=tuple(document["unfinished"])))
    return Page(title=f"Simulation {document['name'] or source}", verdict=None, about=tuple(about),
                sections=tuple(sections), limits=tuple(document["limits"]))  # fmt: skip


def _sweep(document: Document, source: str) -> Page:
    keys = [(entry["metric"], entry["figure"]) for entry in document["objectives"]]
    rows = []
    for row in document["rows"]:
        fields = ", ".join(f"{name} {dumped(value)}" for name, value in row["fields"].items())
        met = (row.get("slo") or {}).get("met")
        told = "-" if met is None or row["verdict"] != "admitted" else "kept" if met else "missed"
        figures = (_figure(row, figure) for _, figure in keys)
        rows.append((str(row["case"]), fields, row["verdict"], *figures, told, "yes" if row["pareto"] else "-"))
    heads = ("case", "fields", "verdict", *(f">{metric}" for metric, _ in keys), "SLO", "Pareto")
    demands = [(gate.name, gate.result, gate.detail) for suite in suites_of("sweep-result", document, source)
               for gate in suite.gates[: len(document["groups"])]]  # fmt: skip
    sections = (
        section("Demands", ("asked", "result", "what"), demands),
        section("Cases", heads, rows, "pareto"),
    )
    return Page(title=f"Sweep {document['name'] or source}", verdict=None,
                about=(f"{len(document['rows']):,} cases of {document['question']}",), sections=sections,
                limits=tuple(document["limits"]))  # fmt: skip


def _figure(row: Document, figure: str) -> str:
    value = figure_of(row, figure)
    if value is None:
        return "-"
    least = ">= " if figure in (row.get("lower_bounds") or ()) else ""
    if is_time(figure):
        return f"{least}{time_words(value)}"
    return f"{least}{value:,}" if isinstance(value, int) else f"{least}{value:,.4g}"


def _records(document: Document, source: str) -> Page:
    records = document["records"]
    done = sum(record["state"] == "finished" for record in records)
    told = Section(title="Latency of each request", words=("Shares of the finished requests.",), picture="latency")
    return Page(title=f"Records {source}", verdict=None, about=(f"{done:,} of {len(records):,} requests finished",),
                sections=(told,), limits=())  # fmt: skip


_PAGES: dict[str, Callable[[Document, str], Page]] = {
    "plan": _plan, "admissions": _admissions, "comparison": _comparison, "run": _run, "proof": _proof,
    "simulation": _simulation, "sweep-result": _sweep, "records": _records, "history": history_page,
}  # fmt: skip
