"""Plans, lists and scenarios as text for people. Every rendering takes a finished document and adds nothing to it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from fleet.units import format_bytes, format_rate
from scenarios.admissions import admission_row
from scenarios.launch_text import launch_block
from scenarios.ledger_text import sequences_lines
from scenarios.table import Paint, Table, safe
from scenarios.times_text import time_cell, time_heading, times_block
from scenarios.transfer_text import in_flight_block, transfer_block
from scenarios.words import (
    COLOR_OF,
    asked,
    count_of,
    defaults_block,
    fix_words,
    joined,
    limits_block,
    listing,
    mapping,
    placed,
    scored_time,
    seconds_of,
    verdict_word,
)
from scenarios.workers_text import workers_block

Document = dict[str, Any]

LINES = ("weights", "kv_cache", "layout_padding", "activations", "workspace")
"""Lines of the memory table that the orders allocate; `runtime` is the driver's own."""


def plan_text(plan: Document, *, color: bool = False, width: int | None = None) -> str:
    """A plan: verdict, reasons with their fix, memory by device, waybill, edges, what was chosen, limits."""
    paint = Paint(color, width)
    inputs = plan.get("inputs") or {}
    head = f"{verdict_word(plan['verdict'], paint)}  {placed(inputs, plan.get('placement') or {})}"
    blocks = [
        [*paint.fold(head), *asked(inputs, plan.get("id"), paint)],
        _reasons(plan.get("reasons") or [], paint, vx=mapping(inputs.get("fleet")).get("format") == "vx"),
        _other_changes(plan, paint),
        workers_block(plan.get("workers") or {}, paint),
        _memory(plan.get("memory") or [], paint),
        in_flight_block(plan.get("transfer") or {}, paint),
        _waybill(plan.get("waybill") or [], paint, _no_way(plan), timed=plan["verdict"] != "refused"),
        edges_block(plan.get("edges") or [], paint),
        _contention(plan.get("contention") or [], paint),
        _summary(plan, paint),
        times_block(plan.get("time") or {}, paint),
        transfer_block(plan.get("transfer") or {}, paint),
        launch_block(plan.get("launch") or [], paint),
        defaults_block(plan, paint),
        listing("Not run", plan.get("not_run") or [], paint),
        listing("Warnings", plan.get("warnings") or [], paint),
        limits_block(plan, paint),
    ]
    return joined(blocks)


def admissions_text(plans: list[Document], *, color: bool = False, width: int | None = None) -> str:
    """Several plans: first one line a fleet, then each plan."""
    paint = Paint(color, width)
    table = Table("Fleets", "verdict", "binding line", ">required", ">available", ">margin", ">handoff")
    for plan, row in zip(plans, map(admission_row, plans), strict=True):
        time = scored_time(row["handoff"]) if row["handoff"] else "none" if plan.get("passes") else "unpriced"
        time = "-" if plan["verdict"] == "refused" and row["handoff"] else time
        short = (row["margin_bytes"] or 0) < 0
        table.add(
            row["fleet"] or "?", row["verdict"], row["binding"] or "-",
            *(format_bytes(row[field]) for field in ("required_bytes", "available_bytes", "margin_bytes")), time,
            colors=(None, COLOR_OF.get(row["verdict"]), None, None, None, "red" if short else None),
        )  # fmt: skip
    return "\n".join([joined([table.lines(paint)]), *(plan_text(plan, color=color, width=width) for plan in plans)])


def backends_text(document: Document, *, color: bool = False, width: int | None = None) -> str:
    """The backends: devices, or why not."""
    paint = Paint(color, width)
    table = Table("Backends", "can run here", "devices, or why not")
    for row in document["backends"]:
        able = bool(row["devices"])
        told = ", ".join(row["devices"]) if able else (row["why_not"] or "no device")
        table.add(row["name"], "yes" if able else "no", told, colors=(None, "green" if able else "yellow"))
    return joined([table.lines(paint), limits_block(document, paint)])


def scenarios_text(document: Document, *, color: bool = False, width: int | None = None) -> str:
    """The shipped scenarios, one a line."""
    paint = Paint(color, width)
    table = Table("Scenarios", "fleet", "prefill", "decode", "attention", "what it shows")
    for row in document["scenarios"]:
        table.add(*(row[key] or "-" for key in ("name", "fleet", "prefill", "decode", "attention", "about")))
    return joined([table.lines(paint), limits_block(document, paint)])


def scenario_text_of(document: Document, *, color: bool = False, width: int | None = None) -> str:
    """What one scenario asks for, a field a line."""
    paint = Paint(color, width)
    table = Table("Asked for", "")
    for name, value in document["asked"].items():
        table.add(name, " ".join(str(token) for token in value) if isinstance(value, (list, tuple)) else str(value))
    return joined([table.lines(paint), limits_block(document, paint)])


def _reasons(reasons: list[Document], paint: Paint, *, vx: bool = False) -> list[str]:
    """Each reason with its figures and its fix; of a Vx machine (`vx`) with the codes that Vx has for it."""
    lines = [paint("Reasons", "bold")]
    fixes = [reason["fix"] for reason in reasons if reason.get("fix")]
    shared = len(fixes) > 1 and all(fix == fixes[0] for fix in fixes)
    for reason in reasons:
        severity = reason.get("severity") or "error"
        codes = [str(code) for code in (reason.get("vx_code"), *(reason.get("vx_also") or ())) if code and vx]
        code = safe(f"{reason['code']} (Vx {' '.join(codes)})" if codes else reason["code"])
        head = f"  {paint(safe(severity), COLOR_OF.get(severity))} {code}: {safe(reason['message'])}"
        lines += paint.fold(head, 4)
        figures = [
            f"{word} {format_bytes(reason[f'{word}_bytes'])}"
            for word in ("needed", "available", "shortfall")
            if reason.get(f"{word}_bytes") is not None
        ]
        if figures:
            lines += paint.fold(f"    {', '.join(figures)}", 6)
        if reason.get("fix") and not shared:
            lines += paint.fold(f"    fix: {fix_words(reason['fix'])}", 9)
    if shared:
        lines += paint.fold(f"  fix: {fix_words(fixes[0])}; it mends all {len(fixes)}", 7)
    return lines if reasons else []


def _other_changes(plan: Document, paint: Paint) -> list[str]:
    """What else would be admitted, one single change a line; and both readings where peer access is unknown."""
    words, readings = [], []
    told = [reason.get("fix") for reason in plan.get("reasons") or []]
    for entry in plan.get("alternatives") or []:
        if entry.get("reading"):
            edges = (e for e in entry.get("edges") or [] if e["bytes"])
            carried = ", ".join(f"{e['src']} -> {e['dst']} {e['bytes']:,} B / {e['copies']:,}" for e in edges)
            readings.append(f"if peer access is {entry['reading']}: {carried}")
        elif entry not in told:
            words.append(fix_words(entry))
    changes = listing("Each of these alone would be admitted too", words, paint)
    return [*changes, *listing("Both readings", readings, paint)]


def _memory(memory: list[Document], paint: Paint) -> list[str]:
    """One column a device: what the orders allocate and its sum, the driver's own, rounding, total and bounds."""
    if not memory:
        return []
    table = Table("Memory", *(f">{safe(entry['device'])}" for entry in memory))
    others = [line for entry in memory for line in entry["resident"] if line not in (*LINES, "runtime")]
    for line in dict.fromkeys([*LINES, *others]):
        figures = [entry["resident"].get(line, 0) for entry in memory]
        if any(figure != 0 for figure in figures):
            table.add(line, *(format_bytes(figure) for figure in figures))
    table.add("= buffers", *(format_bytes(_buffers(entry)) for entry in memory))
    table.add("runtime", *(format_bytes(entry["resident"].get("runtime", 0)) for entry in memory))
    in_use = ("in_use_bytes",) if any("in_use_bytes" in entry for entry in memory) else ()
    for field in ("rounding_bytes", "total_bytes", "budget_bytes", "slack_bytes", "capacity_bytes", *in_use):
        figures = [entry.get(field) for entry in memory]
        short = [field == "slack_bytes" and figure is not None and figure < 0 for figure in figures]
        colors = [None, *("red" if is_short else None for is_short in short)]
        name = "= total" if field == "total_bytes" else field.removesuffix("_bytes")
        table.add(name, *(_bound(entry, field) for entry in memory), colors=colors)
    told = "  buffers: what the orders allocate, and what a run's high-water mark must equal; runtime: the driver's own"
    lines = [*table.lines(paint), *paint.fold(told, 11)]
    for shared in {entry["shared"]["physical"]: entry["shared"] for entry in memory if "shared" in entry}.values():
        names, slack = " and ".join(shared["devices"]), format_bytes(shared["slack_bytes"])
        words = f"  {names} lie in one memory, {shared['physical']}: total {format_bytes(shared['total_bytes'])}"
        lines += paint.fold(safe(f"{words}, slack {slack}"), 4)
    return lines


def _buffers(entry: Document) -> int | None:
    figures = [figure for line, figure in entry["resident"].items() if line != "runtime"]
    return None if None in figures else sum(figures)


def _bound(entry: Document, field: str) -> str:
    """A figure of a device; a host arena has no capacity and so no bound."""
    figure = entry.get(field)
    if figure is None and field != "total_bytes" and str(entry["device"]).startswith("host"):
        return "-"
    return format_bytes(figure)


def _no_way(plan: Document) -> set[str]:
    """`gpu:0->host` of the edges that no declared links carry."""
    edges = (reason.get("edge") for reason in plan.get("reasons") or [] if reason["code"] == "NO_ROUTE")
    return {"->".join(edge) if isinstance(edge, list) else str(edge) for edge in edges}


def _waybill(rows: list[Document], paint: Paint, no_way: Collection[str] = (), *, timed: bool = True) -> list[str]:
    heading = time_heading(rows) if timed else ""
    table = Table("Waybill", "tensor", "edge", "kind", ">bytes", ">copies", ">each pass", f">{heading}")
    for row in rows:
        per_pass = row.get("per_pass")
        each = f"{count_of(per_pass['bytes'])} B / {count_of(per_pass['copies'])}" if per_pass else ""
        table.add(
            row["phase"], row["tensor"], f"{row['src']} -> {row['dst']}", _kind(row, row.get("legs") or []),
            format_bytes(row["bytes"]), count_of(row["copies"]), each, time_cell(row, heading) if timed else "",
        )  # fmt: skip
        legs = row.get("legs")
        if legs is None:
            words = "  no way is declared" if f"{row['src']}->{row['dst']}" in no_way else "  by an unknown way"
            table.add("", "", words, "", "", "", "", "", colors=("", "", "yellow"))
        elif len(legs) > 1:
            for leg in legs:
                ends = f"  {leg['src']} -> {leg['dst']}"
                time = time_cell(leg, heading) if timed and "seconds" in leg else ""
                table.add(
                    "", "", ends, _kind(leg, [leg]), format_bytes(leg["bytes"]), count_of(leg["copies"]), "", time
                )
    return table.lines(paint)


def _kind(part: Document, legs: list[Document]) -> str:
    """The kind of a row or leg, with a word where it goes over a link that was assumed."""
    return f"{part['kind']} assumed" if len(legs) == 1 and legs[0].get("assumed") is True else str(part["kind"])


def edges_block(edges: list[Document], paint: Paint) -> list[str]:
    """The sum over all rows of what each one-way edge carries."""
    table = Table("Edges", "kind", ">bytes", ">copies")
    for edge in edges:
        ends = f"{edge['src']} -> {edge['dst']}"
        table.add(ends, edge["kind"], format_bytes(edge["bytes"]), count_of(edge["copies"]))
    return table.lines(paint)


def _contention(shared: list[Document], paint: Paint) -> list[str]:
    """Segments that flows of one phase share: one flow alone, and all at the same time (a lower bound)."""
    titles = ("segment", "flows", ">bytes", ">bandwidth", ">longest alone, unscored", ">together, unscored")
    table = Table("Shared", *titles)
    for part in shared:
        way = "<->" if part.get("both_ways") else "->"
        rate = part["bandwidth_bytes_per_s"]
        flows = ", ".join(f"{flow['src']} -> {flow['dst']}" for flow in part["flows"][:4])
        more = f" and {len(part['flows']) - 4} more" if len(part["flows"]) > 4 else ""
        alone, together = ({"seconds": part[name], "lower_bound": True} for name in ("alone_s", "together_s"))
        table.add(
            part["phase"], f"{part['src']} {way} {part['dst']} {part['kind']}", flows + more,
            format_bytes(part["bytes"]), "unknown" if rate is None else format_rate(rate),
            seconds_of(alone), seconds_of(together),
        )  # fmt: skip
    return table.lines(paint) if shared else []


def _ends_of(plan: Document) -> set[str]:
    """`gpu:0->gpu:1` of the handoff."""
    return {f"{row['src']}->{row['dst']}" for row in plan.get("waybill") or [] if row["phase"] == "handoff"}


def _summary(plan: Document, paint: Paint) -> list[str]:
    lines = sequences_lines(plan, paint)
    handoff, passes, dispatches = plan.get("handoff"), plan.get("passes"), plan.get("dispatches")
    if handoff:
        moved = f"{format_bytes(handoff['bytes'])} moved in {count_of(handoff['copies'])} copies"
        if handoff.get("legs", ()) is None:  # how often a copy is cut, and what it takes, depends on the way
            way = "no way is declared" if _no_way(plan) & _ends_of(plan) else "the way is unknown"
            moved = f"{format_bytes(handoff['bytes'])} to move, {way}: copies unknown"
        exact = f", {format_bytes(handoff['payload_bytes'])} exact" if "payload_bytes" in handoff else ""
        time = "" if plan["verdict"] == "refused" else f", {scored_time(handoff)}"
        lines += paint.fold(f"Handoff     {moved}{exact}{time}", 12)
    elif passes:
        lines.append("Handoff     none")
    if passes:
        lines.append(f"Passes      prefill {passes['prefill']:,}, decode {passes['decode']:,}")
    if dispatches:
        told = [f"{phase} {count_of(dispatches[phase])}" for phase in ("prefill", "decode")]
        lines.append(f"Dispatches  {', '.join(told)}")
    return lines
