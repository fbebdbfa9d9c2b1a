"""Documents as text for people. Every rendering takes a finished document and adds nothing that is not in it."""

from __future__ import annotations

from typing import Any

from fleet.units import PS_PER_SECOND, format_bytes, format_seconds
from scenarios.table import Paint, Table, safe

Document = dict[str, Any]

_COLOR_OF = {
    "admitted": "green", "equal": "green", "match": "green", "passed": "green", "proved": "green", "caught": "green",
    "refused": "red", "different": "red", "mismatch": "red", "missing": "red", "unplanned": "red", "failed": "red",
    "not proved": "red", "missed": "red", "error": "red",
    "unverified": "yellow", "inconclusive": "yellow", "unwitnessed": "yellow", "unknown": "yellow", "warning": "yellow",
    "waived": "dim",
}  # fmt: skip

_LINES = ("weights", "kv_cache", "layout_padding", "activations", "workspace", "runtime")


def plan_text(plan: Document, *, color: bool = False) -> str:
    """A plan: verdict, reasons with their fix, memory by device, waybill, edges, what was chosen, limits."""
    paint = Paint(color)
    blocks = [
        [_verdict(plan["verdict"], paint) + _placed(plan)],
        _reasons(plan.get("reasons") or [], paint),
        _other_changes(plan, paint),
        _memory(plan.get("memory") or [], paint),
        _waybill(plan.get("waybill") or [], paint),
        _edges(plan.get("edges") or [], paint),
        _summary(plan),
        _defaults(plan, paint),
        _listing("Warnings", plan.get("warnings") or [], paint),
        _limits(plan, paint),
    ]
    return _joined(blocks)


def run_text(run: Document, *, color: bool = False) -> str:
    """A run: the text it wrote, passes and rates, dispatches, waybill with what was observed, memory, comparison."""
    paint = Paint(color)
    comparison = run.get("comparison") or {}
    where = f" on {run['backend']} ({run['tier']}), stopped by {run['stopped']}"
    head = [_verdict(comparison["verdict"], paint) + where] if comparison else [f"ran{where}"]
    made = f"{run['passes']['prefill']:,} prefill and {run['passes']['decode']:,} decode passes"
    n_chosen = len(run["generated_tokens"])
    head.append(f"{run['n_prompt_tokens']:,} prompt tokens, {n_chosen:,} chosen; {made}{_rates(run)}")
    blocks = [
        head,
        ["Text", *(f"  {safe(line)}" for line in (run.get("text") or "").splitlines())] if run.get("text") else [],
        _dispatches(run["dispatches"], paint),
        *(_comparison_blocks(comparison, paint) if comparison else [_waybill(run["waybill"], paint)]),
        _edges(run["edges"], paint),
        _high_water(run["resident"], paint),
        _defaults(run, paint),
        _limits(run, paint),
    ]
    return _joined(blocks)


def comparison_text(comparison: Document, *, color: bool = False) -> str:
    """A comparison: verdict, rows, checks, limits."""
    paint = Paint(color)
    head = [_verdict(comparison["verdict"], paint) + _compared(comparison)]
    return _joined([head, *_comparison_blocks(comparison, paint), _limits(comparison, paint)])


def proof_text(proof: Document, *, color: bool = False) -> str:
    """A proof: verdict, the clean runs, checks x sabotages, what went wrong, limits."""
    paint = Paint(color)
    matrix = proof.get("matrix") or []
    tried = [row for row in matrix if row["verdict"] != "waived"]
    caught = sum(1 for row in tried if row["verdict"] == "caught")
    head = [_verdict(proof["verdict"], paint) + f"  {caught} of {len(tried)} sabotages caught as they must be"]
    wrong = [f"{row['sabotage']}: {row.get('detail', '')}" for row in tried if row["verdict"] != "caught"]
    never = [f"{name}: passed, but no sabotage made it fail" for name in proof.get("never_failed") or []]
    blocks = [head, _clean_runs(proof, paint), _matrix(matrix, paint)]
    blocks.append(_listing("Not proved because", wrong + never, paint))
    return _joined([*blocks, _defaults(proof, paint), _limits(proof, paint)])


def backends_text(document: Document, *, color: bool = False) -> str:
    """The backends: devices, or why not."""
    paint = Paint(color)
    table = Table("backend", "here", "devices, or why not")
    for row in document["backends"]:
        able = bool(row["devices"])
        told = ", ".join(row["devices"]) if able else (row["why_not"] or "no device")
        table.add(row["name"], "yes" if able else "no", told, colors=("bold", "green" if able else "yellow"))
    return _joined([["Backends", *table.lines(paint)], _limits(document, paint)])


def with_limits(text: str, limits: list[str]) -> str:
    """Finished text with its limits below."""
    return _joined([[text.rstrip("\n")], _listing("Limits", limits, Paint(False))])


def _joined(blocks: list[list[str]]) -> str:
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _verdict(word: str, paint: Paint) -> str:
    return paint(word.upper(), _COLOR_OF.get(word))


def _placed(plan: Document) -> str:
    """`  two-gpu: stories260K on two-gpu-nvlink, prefill gpu:0, decode gpu:1`."""
    inputs, placement = plan.get("inputs") or {}, plan.get("placement") or {}
    names = [(inputs.get(what) or {}).get("name") for what in ("model", "fleet")]
    what = f"{names[0]} on {names[1]}, " if all(names) else ""
    where = ", ".join(f"{phase} {placement[phase]}" for phase in ("prefill", "decode") if phase in placement)
    return "  " + safe(what + where)


def _listing(title: str, words: list[str], paint: Paint) -> list[str]:
    return [paint(title, "bold"), *(f"  - {safe(word)}" for word in words)] if words else []


def _defaults(document: Document, paint: Paint) -> list[str]:
    return _listing("Chosen, because nobody said otherwise", document.get("defaults") or [], paint)


def _limits(document: Document, paint: Paint) -> list[str]:
    return _listing("Limits", document.get("limits") or [], paint)


def _reasons(reasons: list[Document], paint: Paint) -> list[str]:
    lines = [paint("Reasons", "bold")]
    for reason in reasons:
        severity = reason.get("severity") or "error"
        lines.append(f"  {paint(severity, _COLOR_OF.get(severity))} {reason['code']}: {safe(reason['message'])}")
        figures = [
            f"{word} {format_bytes(reason[f'{word}_bytes'])}"
            for word in ("needed", "available", "shortfall")
            if reason.get(f"{word}_bytes") is not None
        ]
        if figures:
            lines.append(f"    {', '.join(figures)}")
        if reason.get("fix"):
            lines.append(f"    fix: {fix_words(reason['fix'])}")
    return lines if reasons else []


def _other_changes(plan: Document, paint: Paint) -> list[str]:
    """What else would be admitted, one single change a line; and both readings where peer access is unknown."""
    lines = []
    told = [reason.get("fix") for reason in plan.get("reasons") or []]
    for entry in plan.get("alternatives") or []:
        if entry.get("reading"):
            edges = (e for e in entry.get("edges") or [] if e["bytes"])
            carried = ", ".join(f"{e['src']} -> {e['dst']} {e['bytes']:,} B / {e['copies']:,}" for e in edges)
            lines.append(f"  - if peer access is {entry['reading']}: {carried}")
        elif entry not in told:
            lines.append(f"  - {fix_words(entry)}")
    title = "Each of these alone would be admitted too" if plan["verdict"] == "refused" else "Both readings"
    return [paint(title, "bold"), *lines] if lines else []


def fix_words(fix: Document) -> str:
    """`--positions 64 (was 128)`, changes that belong together joined by `and`."""
    changes = [fix, *fix.get("and", [])]
    return " and ".join(_change_words(change) for change in changes)


def _change_words(change: Document) -> str:
    where = change.get("flag") or change.get("field") or "?"
    between = " " if change.get("flag") else ": "
    was = "" if change.get("from") is None else f" (was {change['from']})"
    return safe(f"{where}{between}{change.get('to')}{was}")


def _memory(memory: list[Document], paint: Paint) -> list[str]:
    """One column a device: its lines, rounding, total, budget, slack and capacity."""
    if not memory:
        return []
    table = Table("Memory", *(f">{safe(entry['device'])}" for entry in memory))
    lines = [*_LINES, *(line for entry in memory for line in entry["resident"] if line not in _LINES)]
    for line in dict.fromkeys(lines):
        figures = [entry["resident"].get(line, 0) for entry in memory]
        if any(figure != 0 for figure in figures):
            table.add(line, *(format_bytes(figure) for figure in figures))
    for field in ("rounding_bytes", "total_bytes", "budget_bytes", "slack_bytes", "capacity_bytes"):
        figures = [entry.get(field) for entry in memory]
        short = [field == "slack_bytes" and figure is not None and figure < 0 for figure in figures]
        colors = [None, *("red" if is_short else None for is_short in short)]
        cells = [_bound(entry, field) for entry in memory]
        table.add(field.removesuffix("_bytes"), *cells, colors=colors)
    return table.lines(paint)


def _bound(entry: Document, field: str) -> str:
    """A figure of a device; a host arena has no capacity and so no bound."""
    figure = entry.get(field)
    if figure is None and field != "total_bytes" and str(entry["device"]).startswith("host"):
        return "-"
    return format_bytes(figure)


def _waybill(rows: list[Document], paint: Paint) -> list[str]:
    table = Table("Waybill", "tensor", "edge", "kind", ">bytes", ">copies", ">a pass", ">time")
    for row in rows:
        per_pass = row.get("per_pass")
        a_pass = f"{_count(per_pass['bytes'])} B / {_count(per_pass['copies'])}" if per_pass else ""
        table.add(
            row["phase"], row["tensor"], f"{row['src']} -> {row['dst']}", row["kind"],
            format_bytes(row["bytes"]), _count(row["copies"]), a_pass, _seconds(row.get("seconds")),
        )  # fmt: skip
        legs = row.get("legs")
        if legs is None:
            table.add("", "", "  by an unknown way", "", "", "", "", "", colors=("", "", "yellow"))
        elif len(legs) > 1:
            for leg in legs:
                ends = f"  {leg['src']} -> {leg['dst']}"
                table.add("", "", ends, leg["kind"], format_bytes(leg["bytes"]), _count(leg["copies"]), "", "")
    return table.lines(paint)


def _edges(edges: list[Document], paint: Paint) -> list[str]:
    table = Table("Edges", "kind", ">bytes", ">copies")
    for edge in edges:
        table.add(f"{edge['src']} -> {edge['dst']}", edge["kind"], format_bytes(edge["bytes"]), _count(edge["copies"]))
    return table.lines(paint)


def _summary(plan: Document) -> list[str]:
    lines = []
    handoff = plan.get("handoff")
    if handoff:
        moved = f"{format_bytes(handoff['bytes'])} moved in {_count(handoff['copies'])} copies"
        exact = f", {format_bytes(handoff['payload_bytes'])} exact" if "payload_bytes" in handoff else ""
        lines.append(f"Handoff     {moved}{exact}, {_seconds(handoff.get('seconds')) or 'unpriced'}")
    passes, dispatches = plan.get("passes"), plan.get("dispatches")
    if passes:
        lines.append(f"Passes      prefill {passes['prefill']:,}, decode {passes['decode']:,}")
    if dispatches:
        told = [f"{phase} {_count(dispatches[phase])}" for phase in ("prefill", "decode")]
        lines.append(f"Dispatches  {', '.join(told)}")
    return lines


def _rates(run: Document) -> str:
    rates = run.get("rates") or {}
    told = [f"{name.removesuffix('_tok_s')} {rate:,.1f}" for name, rate in rates.items() if rate is not None]
    return f"; tokens/s: {', '.join(told)}" if told else ""


def _dispatches(stretches: list[Document], paint: Paint) -> list[str]:
    table = Table("Dispatches", "device", ">topology id", ">count", "passes")
    for stretch in stretches[:20]:
        passes = f"{stretch.get('first_step')}..{stretch.get('last_step')}"
        table.add(stretch["phase"], stretch["device"], str(stretch.get("topology_id")), f"{stretch['count']:,}", passes)
    more = [f"  ... and {len(stretches) - 20} more stretches"] if len(stretches) > 20 else []
    return table.lines(paint) + more


def _high_water(resident: list[Document], paint: Paint) -> list[str]:
    table = Table("High-water mark", ">bytes")
    for entry in resident:
        table.add(entry["device"], format_bytes(entry["high_water_bytes"]))
    return table.lines(paint)


def _compared(comparison: Document) -> str:
    kinds = comparison.get("compared")
    words = f"  {kinds[0]} beside {kinds[1]}" if kinds else ""
    passes = comparison.get("passes")
    if passes:
        made, full = passes["made"], passes["full_length"]
        told = [f"{made[phase]:,} of {full[phase]:,} {phase}" for phase in ("prefill", "decode")]
        words += f"; BOS stopped the run: compared by the passes made ({', '.join(told)})"
    other = [c["detail"] for c in comparison["checks"] if c["name"] == "inputs_unchanged" and not c["required"]]
    return words + "".join(f"; {told}" for told in other if told.startswith("other inputs"))


def _comparison_blocks(comparison: Document, paint: Paint) -> list[list[str]]:
    rows = Table(
        "Rows", "tensor", "edge", "kind", ">predicted", ">counted", ">observed", ">copies", "witness", "verdict"
    )
    for row in comparison["rows"]:
        copies = "/".join(_count(row[f"{who}_copies"]) for who in ("predicted", "counted", "observed"))
        rows.add(
            row["phase"], row["tensor"], f"{row['src']} -> {row['dst']}", row["kind"],
            *(_nbytes(row[f"{who}_bytes"]) for who in ("predicted", "counted", "observed")),
            copies, row["witness"], row["verdict"],
            colors=(None,) * 9 + (_COLOR_OF.get(row["verdict"]),),
        )  # fmt: skip
    checks = Table("Checks", "result", "")
    for check in comparison["checks"]:
        detail = (
            check["detail"] if check["required"] or check["result"] == "waived" else f"(not required) {check['detail']}"
        )
        checks.add(check["name"], check["result"], detail, colors=(None, _COLOR_OF.get(check["result"])))
    return [rows.lines(paint), checks.lines(paint)]


def _clean_runs(proof: Document, paint: Paint) -> list[str]:
    """The checks of the comparisons made of runs that nobody sabotaged."""
    lines = []
    for entry in proof.get("comparisons") or []:
        comparison = entry.get("comparison") or entry
        if "checks" not in comparison:
            continue
        lines.append(f"{paint(safe(str(entry.get('name', 'run'))), 'bold')}: {_verdict(comparison['verdict'], paint)}")
        table = Table("", "", "", indent="    ")
        for check in comparison["checks"]:
            table.add(check["name"], check["result"], check["detail"], colors=(None, _COLOR_OF.get(check["result"])))
        lines += table.lines(paint)
    return lines


_MARKS = {(True, True): ("FAIL", "green"), (True, False): ("fail", None), (False, True): ("no", "red")}
"""(failed, must fail) -> mark: FAIL as it must, fail beside, `no` where it should have failed."""


def _matrix(matrix: list[Document], paint: Paint) -> list[str]:
    """Checks down, sabotages across by number, with the sabotages named below."""
    if not matrix:
        return []
    checks = list(
        dict.fromkeys(name for row in matrix for key in ("must_fail", "must_pass", "failed") for name in row[key])
    )
    table = Table("Checks x sabotages", *(f">{index}" for index in range(1, len(matrix) + 1)))
    for check in checks:
        cells, colors = [], []
        for row in matrix:
            mark, shade = ("-", "dim") if row["verdict"] == "waived" else _mark(check, row)
            cells.append(mark)
            colors.append(shade)
        table.add(check, *cells, colors=(None, *colors))
    names = Table("", "", "", "")
    for index, row in enumerate(matrix, start=1):
        told = ", ".join(row["failed"]) or row.get("detail") or "nothing failed"
        names.add(
            str(index), row["verdict"], row["sabotage"], told, colors=(None, _COLOR_OF.get(row["verdict"], "red"))
        )
    legend = [
        "  FAIL: as it must; fail: beside that; ok: passed as it must; ERR: failed though it must pass;",
        "  no: passed though it must fail; . left free; - does not apply here",
    ]
    return [*table.lines(paint), *legend, "", *names.lines(paint)]


def _mark(check: str, row: Document) -> tuple[str, str | None]:
    failed = check in row["failed"]
    if check in row["must_pass"]:
        return ("ERR", "red") if failed else ("ok", None)
    must = check in row["must_fail"]
    return _MARKS.get((failed, must), (".", "dim"))


def _count(count: int | None) -> str:
    return "-" if count is None else f"{count:,}"


def _nbytes(figure: int | None) -> str:
    """Bytes in a table that is full: exact only."""
    return "-" if figure is None else f"{figure:,} B"


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else format_seconds(round(seconds * PS_PER_SECOND), digits=4)


def scenarios_text(document: Document, *, color: bool = False) -> str:
    """The shipped scenarios, one a line."""
    paint = Paint(color)
    table = Table("Scenarios", "fleet", "prefill", "decode", "attention", "")
    for row in document["scenarios"]:
        table.add(*(row[key] or "-" for key in ("name", "fleet", "prefill", "decode", "attention", "about")))
    return _joined([table.lines(paint), _limits(document, paint)])


def scenario_text_of(document: Document, *, color: bool = False) -> str:
    """What one scenario asks for, a field a line."""
    paint = Paint(color)
    table = Table("Asked for", "")
    for name, value in document["asked"].items():
        table.add(name, " ".join(str(token) for token in value) if isinstance(value, (list, tuple)) else str(value))
    return _joined([table.lines(paint), _limits(document, paint)])
