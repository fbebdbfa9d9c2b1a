"""The summary of a simulation for people."""

from __future__ import annotations

from typing import Any

from fleet.units import format_bytes, format_rate
from scenarios.table import Paint, Table, safe
from scenarios.words import joined, limits_block, listing, time_words

Document = dict[str, Any]
MOST_ROWS = 16
MOST_EDGES = 4
MOST_CHARACTERS = 60


def simulation_text(document: Document, *, color: bool = False, width: int | None = None) -> str:
    """Latencies, rates, edges and workers of a `kvwaybill/simulation/1`."""
    paint = Paint(color, width)
    blocks = [
        _head(document, paint), _latency(document, paint), _rates(document), _edges(document, paint),
        _workers(document, paint), _over_time(document, paint), _observed(document, paint),
        listing("Assumed", document.get("assumed", []), paint),
        listing("Not finished", document["unfinished"], paint), limits_block(document, paint),
    ]  # fmt: skip
    return joined(blocks)


def _head(document: Document, paint: Paint) -> list[str]:
    inputs, counts = document["inputs"], document["requests"]
    name = document["name"] or "simulation"
    lines = [
        paint(safe(f"{name}: {inputs['model']['name']} on {inputs['fleet']['name']}"), "bold"),
        safe(f"{inputs['prefill']} prefill and {inputs['decode']} decode workers, {inputs['traffic']['source']}"),
        f"finished {counts['finished']:,} of {counts['all']:,} in {time_words(document['duration_s'])}: refused"
        f" {counts['refused']:,}, unfinished {counts['unfinished']:,}, retries {counts['retries']:,}, preemptions"
        f" {counts['preemptions']:,}",
    ]
    good = document["goodput"]
    if good is not None:
        bounds = ", ".join(f"{n} <= {time_words(v)}" for n, v in inputs["slo"].items() if v is not None)
        lines.append(
            f"goodput {good['met']:,} of {counts['all']:,} requests ({100 * good['of_all']:.2f} %) met {bounds}"
            + ("" if good["per_s"] is None else f"; {good['per_s']:.3f} a second")
        )
    return lines


def _told(seconds: float | None) -> str:
    return "-" if seconds is None else time_words(seconds)


def _latency(document: Document, paint: Paint) -> list[str]:
    table = Table("Latency", ">mean", ">P50", ">P90", ">P99", ">of")
    for name, row in document["latency"].items():
        cells = [_told(row[key]) for key in ("mean_s", "p50_s", "p90_s", "p99_s")]
        table.add(name, *cells, f"{row['count']:,}")
    return table.lines(paint)


def _rates(document: Document) -> list[str]:
    rates = document["throughput"]
    if rates["requests_per_s"] is None:
        return []
    return [
        f"Throughput  {rates['requests_per_s']:.3f} requests/s; {rates['new_tokens_per_s']:.1f} new tokens/s;"
        f" {rates['new_tokens_per_s_per_decode_device']:.1f} new tokens/s a decode device;"
        f" {rates['prompt_tokens_per_s_per_prefill_device']:.1f} prompt tokens/s a prefill device",
        f"Queues      for prefill {document['queues']['prefill']['mean']:.3f} on average, longest wait"
        f" {_told(document['queues']['prefill']['longest_wait_s'])}; for a handoff"
        f" {document['queues']['handoff']['mean']:.3f}, {_told(document['queues']['handoff']['longest_wait_s'])}",
    ]


def _edges(document: Document, paint: Paint) -> list[str]:
    moved = document["handoffs"]
    table = Table("Handoffs", ">bytes", ">copies", ">busy", ">highest rate")
    rows = sorted(document["edges"], key=lambda row: (-row["bytes"], row["src"], row["dst"]))
    for row in rows[:MOST_ROWS]:
        peak = max(row["bytes_per_s_over_time"], default=0)
        cells = [format_bytes(row["bytes"]), f"{row['copies']:,}", f"{100 * row['utilisation']:.2f} %"]
        table.add(safe(f"{row['src']} -> {row['dst']}"), *cells, format_rate(int(peak), digits=4))
    last = [f"  ... and {len(rows) - MOST_ROWS} more edges"] if len(rows) > MOST_ROWS else []
    lost = f", {moved['lost']:,} cut short by failures" if moved["lost"] else ""
    return [*table.lines(paint), *last, f"  all: {format_bytes(moved['bytes'])} in {moved['count']:,} handoffs{lost}"]


def _over_time(document: Document, paint: Paint) -> list[str]:
    """A line a series, a character the highest of its bins, in tenths of the line's highest."""
    told, edges = document["series"], document["series"]["edges"]
    lines = {"requests in the system": told["in_system"]}
    for phase in ("prefill", "decode"):
        names = {name: values for name, values in told.get(phase, {}).items() if name != "kv_share"}
        lines |= {f"{phase} {name.replace('_', ' ')}": values for name, values in names.items()}
    lines |= {f"{edge['src']} -> {edge['dst']} busy": edge["utilisation"] for edge in edges[:MOST_EDGES]}
    bins = len(told["in_system"])
    each = -(-bins // MOST_CHARACTERS)
    table = Table(f"Over time, {time_words(each * told['bin_s'])} a character", ">highest", "tenths of it")
    for name, values in lines.items():
        if top := max(values):
            tops = [max(values[at : at + each]) for at in range(0, bins, each)]
            table.add(safe(name), f"{top:.4g}", "".join("." if not v else str(int(9 * v / top + 0.5)) for v in tops))
    return table.lines(paint)


def _observed(document: Document, paint: Paint) -> list[str]:
    if "observed" not in document:
        return []
    table = Table("Observed", ">compared", ">MAPE", ">Pearson", ">factor", ">MAPE with it", ">scored on")
    for name, row in document["observed"].items():
        shares = ["-" if row[k] is None else f"{100 * row[k]:.2f} %" for k in ("mape", "mape_with_factor")]
        plain = ["-" if row[k] is None else f"{row[k]:.4f}" for k in ("pearson", "factor")]
        scored = "-" if row["scored_on"] is None else f"{row['scored_on']:,}"
        table.add(name, f"{row['compared']:,}", shares[0], *plain, shares[1], scored)
    return table.lines(paint)


def _workers(document: Document, paint: Paint) -> list[str]:
    bent = any("kv_bytes" in row for row in document["workers"])
    unit = "bytes" if bent else "blocks"
    table = Table("Workers", "phase", ">busy", ">steps", f">KV {unit}", ">peak", ">preemptions")
    for row in document["workers"][:MOST_ROWS]:
        table.add(
            safe(row["device"]), row["phase"], f"{100 * row['busy']:.2f} %", f"{row['steps']:,}",
            f"{row[f'kv_{unit}']:,}", f"{row[f'kv_{unit}_peak']:,}", f"{row['preemptions']:,}",
        )  # fmt: skip
    more = len(document["workers"]) - MOST_ROWS
    return [*table.lines(paint), *([f"  ... and {more} more workers"] if more > 0 else [])]
