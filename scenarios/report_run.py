"""Runs and comparisons as text for people: predicted, counted and observed side by side."""

from __future__ import annotations

from typing import Any

from fleet.units import format_bytes
from scenarios.report import edges_block
from scenarios.reports.changes import changes_block
from scenarios.table import Paint, Table, safe
from scenarios.words import (
    COLOR_OF,
    asked,
    count_of,
    defaults_block,
    exact_bytes,
    joined,
    limits_block,
    mapping,
    placed,
    plural,
    verdict_word,
    without_repeats,
)

Document = dict[str, Any]
MOST_STRETCHES = 20


def run_text(run: Document, *, color: bool = False, width: int | None = None) -> str:
    """A run: the text it wrote, passes and rates, dispatches, waybill with what was observed, memory, comparison."""
    paint = Paint(color, width)
    comparison = run.get("comparison") or {}
    word = verdict_word(comparison["verdict"], paint) if comparison else "ran"
    blocks = [
        [*paint.fold(f"{word} on {safe(run['backend'])} ({run['tier']}), {_ended(run)}"), *asked_of_run(run, paint)],
        _written(run, paint),
        _dispatches(run["dispatches"], paint),
        *(comparison_blocks(comparison, paint) if comparison else [_counted(run["waybill"], paint)]),
        edges_block(run["edges"], paint),
        _high_water(run["resident"], paint),
        defaults_block(run, paint),
        limits_block(run, paint),
    ]
    return joined(blocks)


def comparison_text(comparison: Document, *, color: bool = False, width: int | None = None) -> str:
    """A comparison: verdict, what was compared, rows, checks, limits."""
    paint = Paint(color, width)
    head = paint.fold(verdict_word(comparison["verdict"], paint) + _compared(comparison))
    blocks = [[*head, *_documents(comparison, paint)], *comparison_blocks(comparison, paint)]
    return joined([*blocks, limits_block(comparison, paint)])


def asked_of_run(run: Document, paint: Paint) -> list[str]:
    """What the run was asked, and what it made of it."""
    inputs = mapping(run.get("inputs"))
    where = placed(inputs, mapping(inputs.get("placement")))
    made = f"{run['passes']['prefill']:,} prefill and {run['passes']['decode']:,} decode passes"
    chosen = len(run["generated_tokens"])
    told = f"made: {run['n_prompt_tokens']:,} prompt tokens, {chosen:,} chosen; {made}{_rates(run)}"
    lines = paint.fold(where, 2) if where else []
    return [*lines, *asked(inputs, run.get("plan_id"), paint), *paint.fold(told, 6)]


def _ended(run: Document) -> str:
    """`after 96 passes`; or that BOS came before the last one."""
    made = sum(run["passes"].values())
    early = ": the model chose BOS, which ends a text" if run["stopped"] == "bos" else ""
    return f"after {made:,} {plural(made, 'pass')}{early}"


def _rates(run: Document) -> str:
    rates = run.get("rates") or {}
    told = [f"{name.removesuffix('_tok_s')} {rate:,.1f}" for name, rate in rates.items() if rate is not None]
    return f"; tokens/s: {', '.join(told)}" if told else ""


def _written(run: Document, paint: Paint) -> list[str]:
    """The text; a piece that is repeated over and over stands once, with its count."""
    if not run.get("text"):
        return []
    lines = [without_repeats(line) for line in run["text"].splitlines()]
    return [paint("Text", "bold"), *(part for line in lines for part in paint.fold(f"  {safe(line)}", 2))]


def _dispatches(stretches: list[Document], paint: Paint) -> list[str]:
    table = Table("Dispatches", "device", ">topology id", ">count", "passes")
    for stretch in stretches[:MOST_STRETCHES]:
        passes = f"{stretch.get('first_step')}..{stretch.get('last_step')}"
        table.add(stretch["phase"], stretch["device"], str(stretch.get("topology_id")), f"{stretch['count']:,}", passes)
    left = len(stretches) - MOST_STRETCHES
    return table.lines(paint) + ([f"  ... and {left} more {plural(left, 'stretch')}"] if left > 0 else [])


def _high_water(resident: list[Document], paint: Paint) -> list[str]:
    table = Table("High-water mark", ">buffers")
    for entry in resident:
        table.add(entry["device"], format_bytes(entry["high_water_bytes"]))
    return table.lines(paint)


def _counted(rows: list[Document], paint: Paint) -> list[str]:
    """The rows of a run that nothing was set beside."""
    table = Table("Waybill", "tensor", "edge", "kind", ">bytes", ">copies")
    for row in rows:
        ends = f"{row['src']} -> {row['dst']}"
        table.add(row["phase"], row["tensor"], ends, row["kind"], format_bytes(row["bytes"]), count_of(row["copies"]))
    return table.lines(paint)


def _compared(comparison: Document) -> str:
    kinds = comparison.get("compared")
    words = f"  {kinds[0]} beside {kinds[1]}" if kinds else ""
    passes = comparison.get("passes")
    if passes:
        made, full = passes["made"], passes["full_length"]
        told = [f"{made[phase]:,} of {full[phase]:,} {phase}" for phase in ("prefill", "decode")]
        words += f"; BOS stopped the run: compared by the passes made ({', '.join(told)})"
    return words


def _documents(comparison: Document, paint: Paint) -> list[str]:
    """A and B, a line each: path, kind, plan, what it is about."""
    lines = []
    for letter, told in zip("AB", comparison.get("documents") or [], strict=False):
        what = f"{told['kind']} of plan" if told["kind"] == "run" else told["kind"]
        named = "" if told["kind"] == "observation" else f" {(told.get('plan_id') or 'unknown')[:12]}"
        words = [
            f"{what}{named}",
            told.get("verdict"),
            told.get("about"),
            told.get("asked"),
        ]
        lines += paint.fold(safe(f"  {letter}  {told['path']}: {', '.join(word for word in words if word)}"), 5)
    return lines


def comparison_blocks(comparison: Document, paint: Paint) -> list[list[str]]:
    """Rows and checks."""
    kinds = comparison.get("compared") or ["plan", "run"]
    if kinds[1] == "observation":
        from scenarios.observations.text import observation_blocks

        return [*observation_blocks(comparison, paint), checks_block(comparison["checks"], paint)]
    if (changes := comparison.get("changes")) is not None:
        return [*changes_block(changes, paint), checks_block(comparison["checks"], paint)]
    rows = _changed_rows(comparison["rows"], paint) if kinds[0] == kinds[1] else _rows(comparison["rows"], paint)
    return [rows, checks_block(comparison["checks"], paint)]


def _rows(rows: list[Document], paint: Paint) -> list[str]:
    """Predicted, counted and observed of every leg."""
    table = Table(
        "Rows", "tensor", "edge", "kind", ">predicted", ">counted", ">observed", ">copies", "witness", "verdict"
    )
    for row in rows:
        copies = "/".join(count_of(row[f"{who}_copies"]) for who in ("predicted", "counted", "observed"))
        table.add(
            row["phase"], row["tensor"], f"{row['src']} -> {row['dst']}", row["kind"],
            *(exact_bytes(row[f"{who}_bytes"]) for who in ("predicted", "counted", "observed")),
            copies, row["witness"], row["verdict"],
            colors=(None,) * 9 + (COLOR_OF.get(row["verdict"]),),
        )  # fmt: skip
    legend = "  copies: predicted/counted/observed, - where no witness saw it or none can tell a repeat"
    return [*table.lines(paint), *paint.fold(legend, 10)] if rows else []


def _changed_rows(rows: list[Document], paint: Paint) -> list[str]:
    """Two documents of one kind: the rows that differ. Nothing was observed here, so the columns are A and B."""
    table = Table("Rows that differ", "tensor", "edge", "kind", ">A", ">B", ">difference", ">copies A", ">copies B", "")
    for row in rows:
        if row["verdict"] != "match":
            words = {"missing": "only in A", "unplanned": "only in B"}.get(row["verdict"], "")
            there = (row["verdict"] != "unplanned", row["verdict"] != "missing")
            sides = [[row[f"{who}_{unit}"] for who in ("predicted", "observed")] for unit in ("bytes", "copies")]
            gain = row["difference"]
            table.add(
                row["phase"], row["tensor"], f"{row['src']} -> {row['dst']}", row["kind"],
                *(exact_bytes(side) if here else "-" for side, here in zip(sides[0], there, strict=True)),
                "unknown" if gain is None else f"{gain:+,} B",
                *(count_of(side) if here else "-" for side, here in zip(sides[1], there, strict=True)),
                words,
            )  # fmt: skip
    alike = sum(1 for row in rows if row["verdict"] == "match")
    if not table.rows:
        return [paint(f"All {alike} rows have the same bytes and copies", "bold")] if alike else []
    return [*table.lines(paint), f"  {alike} more {plural(alike, 'row')} the same in A and B"]


def checks_block(checks: list[Document], paint: Paint, *, title: str = "Checks", indent: str = "  ") -> list[str]:
    """A check a line. Checks that say the same and were not passed or failed stand together below."""
    shared: dict[tuple[str, bool, str], list[str]] = {}
    for check in checks:
        if check["result"] in ("waived", "inconclusive"):
            shared.setdefault((check["result"], check["required"], check["detail"]), []).append(check["name"])
    table = Table(title, "result" if title else "", "", indent=indent)
    for check in checks:
        key = (check["result"], check["required"], check["detail"])
        if len(shared.get(key, ())) < 2:
            told = check["detail"] if check["required"] or check["result"] == "waived" else _not_required(check)
            table.add(check["name"], check["result"], told, colors=(None, COLOR_OF.get(check["result"])))
    lines = table.lines(paint)
    for (result, required, detail), names in shared.items():
        if len(names) > 1:
            more = "" if required or result == "waived" else " (not required)"
            lead = f"{indent}{len(names)} {paint(result, COLOR_OF.get(result))}{more}: "
            lines += paint.fold(f"{lead}{safe(detail)}: {safe(', '.join(names))}", len(indent) + 2)
    return lines


def _not_required(check: Document) -> str:
    return f"(not required) {check['detail']}"
