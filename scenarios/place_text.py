"""`kvwaybill place` for people: the ranked table, why each lower one lost, and what was not admitted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from scenarios.table import Paint, Table, safe
from scenarios.times_text import ONE_A_CALL, time_cell, time_heading
from scenarios.words import (
    defaults_block,
    exact_bytes,
    fix_words,
    joined,
    limits_block,
    mapping,
    plural,
    scored_time,
    time_words,
    verdict_word,
)

Document = dict[str, Any]
_OBJECTIVES = {
    "handoff": "least time of the handoff", "ttft": "least time to the first token",
    "throughput": "most generated tokens a second and device", "devices": "fewest devices",
    "cost": "least cost an hour",
}  # fmt: skip
_NUMBERED = re.compile(r"(.*?)([0-9]+)")
_TIMES = {"handoff": "handoff", "ttft": "TTFT", "tpot": "TPOT"}
MOST_CHANGES = 5
MOST_BROKEN = 3


def place_text(document: Document, *, color: bool = False, width: int | None = None) -> str:
    """The document as text."""
    paint = Paint(color, width)
    return joined([
        _heading(document, paint),
        _table(document, paint),
        _reasons_why(document, paint),
        _asked(document, paint),
        _others(document, paint),
        _changes(document, paint),
        defaults_block(document, paint),
        limits_block(document, paint),
    ])  # fmt: skip


def _heading(document: Document, paint: Paint) -> list[str]:
    search, fleet = document["search"], mapping(mapping(document["inputs"]).get("fleet")).get("name")
    found = {"admitted": "found", "refused": "none fits", "unverified": "none is verified"}[document["verdict"]]
    considered, possible = search["considered"], search["possible"]
    what = plural(considered, "pair") if document["kind"] == "pairs" else f"{plural(considered, 'size')} of pools"
    of = "" if considered == possible else f" of {possible:,}"
    proof = "exact" if search["exact"] else "not all looked at"
    if not search["exact"] and search["bound_s"] is not None and document["kind"] == "pairs":
        proof = f"not all looked at: none of the others takes less than {time_words(search['bound_s'])}, unscored"
    if not search["exact"] and document["kind"] == "pools" and document["placements"]:
        best = _bound_words(search)
        proof += f": none has {best}" if best else ", but none is better than the first"
    if "mixtures" in search and search["mixtures"]["searched"] < search["mixtures"]["possible"]:
        searched, every = search["mixtures"]["searched"], search["mixtures"]["possible"]
        proof += f"; of unlike cards in a phase, searched {searched:,} of {every:,} {plural(every, 'mixture')}"
    lines = [
        f"place: {verdict_word(document['verdict'], paint)}, {found} on {safe(str(fleet))}"
        f" ({search['devices']:,} devices, {considered:,}{of} {what}; {proof})",
        f"objective: {_OBJECTIVES[document['objective']]}{_routing(document)}{_rules(document['constraints'])}",
    ]
    return [line for text in lines for line in paint.fold(text)]


def _routing(document: Document) -> str:
    words = {
        "any": "; every prefill worker may serve every decode worker",
        "nearest": "; each decode worker is served by its nearest prefill worker",
    }
    return words.get(document.get("routing", ""), "")


def _rules(constraints: Document) -> str:
    told = [f"{word} {', '.join(constraints[word])}" for word in ("require", "prefer") if constraints[word]]
    told += [f"{word} {short_ids(constraints[word])}" for word in ("exclude", "avoid") if constraints[word]]
    told += [f"{phase} on {short_ids(constraints[phase])}" for phase in ("prefill", "decode") if constraints[phase]]
    return "".join(f"; {safe(words)}" for words in told)


def _table(document: Document, paint: Paint) -> list[str]:
    rows = document["placements"]
    pools = document["kind"] == "pools"
    priced = any(row["cost_per_hour"] is not None for row in rows)
    rated = any(row["tokens_per_s_per_device"] is not None for row in rows)
    times = {name: time_heading([row[name] for row in rows if row[name]], word) for name, word in _TIMES.items()}
    headings = ["placements", "prefill", "decode", *([">batch", ">devices"] if pools else [])]
    headings += [*(f">{heading}" for heading in times.values()), *([">tokens/s/device, unscored"] if rated else [])]
    headings += [*([">an hour"] if priced else []), ">room", *([] if pools else [">alike"])]
    table = Table(*headings, "")
    for row in rows:
        cells = [f"{row['rank']}", _workers(row["prefill"]), _workers(row["decode"])]
        cells += [f"{row['batch']:,}", f"{row['devices']:,}"] if pools else []
        cells += ["-" if row[name] is None else time_cell(row[name], heading) for name, heading in times.items()]
        cells += [_number(row["tokens_per_s_per_device"])] if rated else []
        cells += [_number(row["cost_per_hour"])] if priced else []
        cells += [exact_bytes(row["slack_bytes"])]
        cells += [] if pools else [f"{row['alike']:,}"]
        table.add(*cells, _marks(row))
    return [*table.lines(paint), *_one_a_call(document, paint)]


def _one_a_call(document: Document, paint: Paint) -> list[str]:
    """What the times to the first token rest on where a prompt is computed one position a call, as of a plan."""
    asked = mapping(mapping(document["inputs"]).get("workload"))
    timed = any(row["ttft"] and row["ttft"]["seconds"] is not None for row in document["placements"])
    if not timed or asked.get("prefill_chunk") != 1 or asked.get("prompt_tokens", 1) < 2:
        return []
    return paint.fold(f"  {ONE_A_CALL}", 2)


def _marks(row: Document) -> str:
    """Short remarks: on the Pareto front, over a host, not proven best of its sizes."""
    told = ["pareto"] if row["pareto"] else []
    told += ["staged"] if row["staged"] else []
    told += [f"{phase} {_mixture(cards)}" for phase, cards in row["cards"].items() if len(cards) > 1]
    told += [f"breaks {_few(row['broken'])}"] if row["broken"] else []
    told += [] if row["proven"] else [f"not proven: none has {_bound_words(row) or 'fewer broken preferences'}"]
    return ", ".join(told)


def _mixture(cards: Sequence[Document]) -> str:
    """`2 x h100-sxm-80 + 1 x a100-sxm-80`: the workers of a phase by their cards."""
    return safe(" + ".join(f"{each['workers']} x {each['sku'] or 'a card without a name'}" for each in cards))


def _few(words: Sequence[str]) -> str:
    more = f" and {len(words) - MOST_BROKEN} more" if len(words) > MOST_BROKEN else ""
    return safe(", ".join(words[:MOST_BROKEN])) + more


def _bound_words(part: Document) -> str | None:
    """`less than 12 us`, or `more than 31 tokens/s/device`; None where no bound is told."""
    if (rate := part.get("bound_tokens_per_s_per_device")) is not None:
        return f"more than {_number(rate)} tokens/s/device, unscored"
    if (cost := part.get("bound_cost_per_hour")) is not None:
        return f"a cost of less than {_number(cost)} an hour"
    return None if part["bound_s"] is None else f"less than {time_words(part['bound_s'])}, unscored"


def _reasons_why(document: Document, paint: Paint) -> list[str]:
    rows = [row for row in document["placements"] if row["why_not_first"]]
    if not rows:
        return []
    lines = [line for row in rows for line in paint.fold(f"  {row['rank']}: {safe(row['why_not_first'])}", 5)]
    return [paint("why not first", "bold"), *lines]


def _asked(document: Document, paint: Paint) -> list[str]:
    """The scenario's own placement."""
    asked = document["asked"]
    if not asked:
        return []
    told = f"the scenario's own: prefill {safe(asked['prefill'])}, decode {safe(asked['decode'])}: {asked['verdict']}"
    if asked["handoff"]:
        told += f", handoff {scored_time(asked['handoff'])}"
    if asked.get("better"):
        told += f"; {asked['better']:,} {plural(asked['better'], 'pair')} go before it"
    told += f": {safe(asked['why_not_first'])}" if asked.get("why_not_first") else ""
    lines = paint.fold(told)
    for reason in asked["reasons"]:
        lines += paint.fold(f"  {reason['code']}: {safe(reason['message'])}", 4)
    return lines


def _others(document: Document, paint: Paint) -> list[str]:
    if not document["others"]:
        return []
    what = "pair" if document["kind"] == "pairs" else "size"
    lines = [paint("not admitted", "bold")]
    for each in document["others"]:
        ends = f"prefill {_workers(each['prefill'])}, decode {_workers(each['decode'])}"
        head = f"  {each['count']:,} {plural(each['count'], what)} {each['verdict']}: {', '.join(each['codes'])}"
        lines += paint.fold(f"{head}; e.g. {ends}", 4)
        for reason in each.get("reasons") or []:
            lines += paint.fold(f"    {safe(reason['message'])}", 6)
    return lines


def _changes(document: Document, paint: Paint) -> list[str]:
    """What would admit the refused one that lacks least."""
    changes = document["alternatives"]
    if not changes:
        return []
    ends = changes[0]["placement"]
    pair = f"prefill {safe(ends['prefill'])}, decode {safe(ends['decode'])}"
    lines = [paint(f"would be admitted by kvwaybill admit ({pair})", "bold")]
    for change in changes[:MOST_CHANGES]:
        plain = {name: value for name, value in change.items() if name != "placement"}
        lines += paint.fold(f"  {safe(fix_words(plain))}", 4)
    left = len(changes) - MOST_CHANGES
    return [*lines, *([f"  and {left:,} more (-o json)"] if left > 0 else [])]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.4g}"


def _workers(workers: Sequence[Sequence[str]]) -> str:
    """Workers of one device in one list; of several devices each in brackets."""
    if all(len(worker) == 1 for worker in workers):
        return safe(short_ids([worker[0] for worker in workers]))
    return safe(" ".join(f"[{short_ids(worker)}]" for worker in workers))


def short_ids(names: Sequence[str]) -> str:
    """`gpu:0-3,gpu:6`: runs of numbers at the end of ids that only differ in them."""
    runs: list[tuple[str, int, int]] = []
    for name in names:
        found = _NUMBERED.fullmatch(name)
        stem, number = (found[1], int(found[2])) if found and str(int(found[2])) == found[2] else (name, -1)
        if runs and number >= 0 and runs[-1][0] == stem and runs[-1][2] + 1 == number:
            runs[-1] = (stem, runs[-1][1], number)
        else:
            runs.append((stem, number, number))
    told = [
        stem if first < 0 else f"{stem}{first}" + (f"-{last}" if last > first else "") for stem, first, last in runs
    ]
    return ",".join(told[:12]) + (f" and {len(told) - 12} more" if len(told) > 12 else "")
