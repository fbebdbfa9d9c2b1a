"""An audit as text for people."""

from __future__ import annotations

from typing import Any

from scenarios.table import Paint, Table, safe
from scenarios.words import joined, limits_block, listing, plural, time_words

Document = dict[str, Any]
MOST_ROWS = 40
_COLORS = {"consistent": "green", "contradicted": "red", "inconclusive": "yellow"}
_SEVERE = {"impossible": "red", "contradiction": "red", "warning": "yellow"}


def audit_text(document: Document, *, color: bool = False, width: int | None = None) -> str:
    """Verdict, what the log tells, every reading, rates beside links, findings, limits."""
    paint = Paint(color, width)
    log = document["log"]
    version = ", ".join(log["versions"])
    said = f"{log['format']}{f' ({version})' if version else ''}, {log['n_parts']:,} {plural(log['n_parts'], 'part')}"
    head = paint.fold(f"{paint(document['verdict'].upper(), _COLORS[document['verdict']])}  {safe(said)}")
    blocks = [
        head, _findings(document, paint), _parts(document, paint), _sizes(document, paint), _readings(document, paint),
        _ranks(document, paint), _pool(document, paint), *_model(document, paint), _rates(document, paint),
        listing("Warnings", log["warnings"][:MOST_ROWS], paint), limits_block(document, paint),
    ]  # fmt: skip
    return joined(blocks)


def _findings(document: Document, paint: Paint) -> list[str]:
    found = document["findings"]
    lines = [paint("Findings", "bold")] if found else []
    for each in found[:MOST_ROWS]:
        where = f" {each['where']}:" if each["where"] else ""
        word = paint(each["severity"], _SEVERE[each["severity"]])
        lines += paint.fold(f"  {word} {each['code']}{safe(where)} {safe(each['message'])}", 4)
    return lines + _more(len(found))


def _more(count: int) -> list[str]:
    return [f"  ... and {count - MOST_ROWS:,} more; -o json has them"] if count > MOST_ROWS else []


def _parts(document: Document, paint: Paint) -> list[str]:
    table = Table("Told", ">transfers", ">bytes", ">descriptors", ">bytes a transfer", ">time a transfer")
    parts = document["log"]["parts"]
    for part in parts[:MOST_ROWS]:
        mean = part["seconds_per_transfer"]
        time = "-" if mean is None else time_words(sum(mean) / 2)
        table.add(
            part["where"], _range(part["transfers"]), _range(part["bytes"]), _range(part["descriptors"]),
            "-" if part["bytes_per_transfer"] is None else _middle(part["bytes_per_transfer"]), time,
        )  # fmt: skip
    return table.lines(paint) + _more(document["log"]["n_parts"])


def _range(value: list[int] | None) -> str:
    """`4`, or `9,435,087..9,439,281`; `-` where nobody says it."""
    if value is None:
        return "-"
    low, high = value
    return f"{low:,}" if low == high else f"{low:,}..{high:,}"


def _middle(value: list[float]) -> str:
    low, high = value
    middle, half = (low + high) / 2, (high - low) / 2
    return f"{middle:,.0f} B" if half < 0.5 else f"{middle:,.0f} +- {half:,.0f} B"


def _sizes(document: Document, paint: Paint) -> list[str]:
    """What one descriptor may be, and what a block of that size may hold."""
    if document["descriptor_bytes"] is None:
        return []
    held = document["descriptors_hold"]
    low, high = document["descriptor_bytes"]
    told = f"{low:,.2f} to {high:,.2f} B a descriptor"
    if not held:
        return paint.fold(f"Descriptors  {told}: too wide to tell sizes apart, or no whole one", 13)
    table = Table("Descriptor", ">tokens a block", ">bytes a token", "of one region: numbers by their bytes")
    rows = [(entry["bytes"], row) for entry in held for row in entry["tokens"]]
    for size, row in rows[:MOST_ROWS]:
        numbers = ", ".join(f"{count:,} of {width} B" for width, count in row["numbers"].items())
        table.add(f"{size:,} B", f"{row['block_tokens']:,}", f"{row['bytes_per_token']:,} B", numbers)
    bare = [f"{entry['bytes']:,} B" for entry in held if not entry["tokens"]]
    rest = [f"  {', '.join(bare[:8])}: no block size that is offered divides it"] if bare else []
    return [*paint.fold(f"Descriptors  {told}", 13), *table.lines(paint), *rest, *_more(len(rows))]


def _readings(document: Document, paint: Paint) -> list[str]:
    """Layers and blocks; the size of a block where there is one only."""
    found = document["readings"]
    sizes = [f"{entry['bytes']:,} B" for entry in document["descriptors_hold"]]
    size = f" of {sizes[0]}" if len(sizes) == 1 else ""
    lines = [paint("Layers x blocks, if transfers are alike", "bold")] if found else []
    for row in found[:MOST_ROWS]:
        regions = "K,V" if row["regions_per_layer"] == 2 else "one region"  # a latent, or K and V joined
        blocks = ", ".join(f"{count:,}" for count in row["blocks"][:8])
        tokens = f" ({', '.join(map(str, row['block_tokens'][:8]))} tokens)" if "block_tokens" in row else ""
        words = f"{row['layers']:,} {plural(row['layers'], 'layer')} x {regions} x {blocks} blocks{size}{tokens}"
        lines.append(f"  {words}")
    lines += _more(len(found))
    differing = document["regions_if_transfers_differ"]
    if differing and not found:
        words = ", ".join(f"{n:,}" for n in differing[:MOST_ROWS])
        lines += paint.fold(f"Regions (K and V of each layer are two) that fit all totals: {words}", 2)
    return lines


def _ranks(document: Document, paint: Paint) -> list[str]:
    told = [part for part in document["log"]["parts"] if len(part["bytes_per_request"]) > 1]
    if not told:
        return []
    part = told[0]
    count = part["transfers"][0]
    words = ", ".join(
        f"{row['ranks']} ({row['requests']:,} of {_range(row['bytes'])} B)" for row in part["bytes_per_request"]
    )
    more = f"; so on for {len(told) - 1:,} more" if len(told) > 1 else ""
    head = f"Ranks (requests, if none is cut) of {count:,} transfers of {safe(part['where'])}"
    return paint.fold(f"{head}: {words}{more}", 2)


def _pool(document: Document, paint: Paint) -> list[str]:
    if document["pool"] is None:
        return []
    low, high = document["pool"]["bytes_per_token"]
    return paint.fold(f"Pool  {low:,.0f} to {high:,.0f} B a token in all layers of a rank, by the lines at start", 6)


def _model(document: Document, paint: Paint) -> list[list[str]]:
    model = document.get("model")
    if model is None:
        return []
    if model["unknown"] is not None:
        return [paint.fold(safe(f"Model  unknown: {model['unknown']}"), 7)]
    found = model["readings"]
    head = f"{model['name']}: {len(found):,} of {model['tried']:,} cuts fit"
    table = Table(head, ">tp", ">pp", "cache", ">block", ">layers", ">bytes a block", ">blocks", ">tokens a transfer")
    for row in found[:MOST_ROWS]:
        first = row["transfers"][0] if row["transfers"] else {"blocks": None, "tokens": None}
        same = all(each == first for each in row["transfers"])
        table.add(
            "", str(row["tp"]), str(row["pp"]), row["kv_dtype"] + (", K,V joined" if row["kv_joined"] else ""),
            str(row["block_tokens"]), str(row["layers"]),
            f"{row['block_bytes']:,} B", _range(first["blocks"]) if same else "differ",
            _range(first["tokens"]) if same else "differ",
        )  # fmt: skip
    return [table.lines(paint) + _more(len(found)) if found else [f"{safe(head)}"]]


def _rates(document: Document, paint: Paint) -> list[str]:
    table = Table("Rates", ">GB/s", ">without posting", ">a descriptor", "beside declared links")
    for row in document["rates"][:MOST_ROWS]:
        moving = "-" if row["moving_bytes_per_s"] is None else _gb(row["moving_bytes_per_s"])
        piece = "-" if row["seconds_per_descriptor"] is None else time_words(row["seconds_per_descriptor"])
        table.add(row["where"], _gb(row["bytes_per_s"]), moving, piece, _links(row["links"]))
    return table.lines(paint) + _more(len(document["rates"]))


def _gb(value: list[float]) -> str:
    return f"{sum(value) / 2e9:,.4g}" if value[1] < value[0] * 1.01 else f"{value[0] / 1e9:,.4g}..{value[1] / 1e9:,.4g}"


def _links(links: list[Document]) -> str:
    words = {"far below": "not", "too fast": "faster than any", "possible": "possible"}
    found = []
    for standing, word in words.items():
        kinds = [_link(link, standing) for link in links if link["standing"] == standing]
        if kinds:
            found.append(f"{word} {', '.join(kinds)}")
    return "; ".join(found)


def _link(link: Document, standing: str) -> str:
    if standing != "far below":
        return str(link["kind"])
    return f"{link['kind']} ({100 * link['share_of_slowest']:.2g} % of {format_rate(link['slowest_bytes_per_s'])})"


def format_rate(rate: int) -> str:
    """`300 GB/s`."""
    return f"{rate / 1e9:g} GB/s"
