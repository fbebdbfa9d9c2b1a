"""What changed from one plan to another, and why it matters: as `terraform plan` tells it, from documents alone.

A change names the inputs that its figure follows from, of those that changed. It says nothing where none of them did.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from fleet.units import format_bytes
from scenarios.reports.shape import named_alike
from scenarios.table import Paint, safe
from scenarios.words import mapping, time_words

Document = dict[str, Any]
Sign = Literal["~", "+", "-"]
GROUPS = ("verdict", "inputs", "placement", "memory", "rows", "edges", "time")
_DEPENDS: dict[str, tuple[str, ...]] = {
    "weights": ("model", "weights_dtype", "attention", "tp", "pp"),
    "kv_cache": ("model", "positions", "batch", "kv_dtype", "attention", "tp", "pp"),
    "activations": ("model", "prefill_chunk", "batch", "positions", "attention", "tp", "pp"),
    "workspace": ("model", "positions", "attention"),
    "layout_padding": ("model", "layout"),
    "runtime": ("fleet",),
    "budget": ("fleet", "utilization", "reserve_bytes"),
    "stage": ("model", "weights_dtype", "attention", "tp", "pp"),
    "prefill": ("model", "prompt_tokens", "passes", "prefill_chunk", "batch", "attention"),
    "handoff": ("model", "prompt_tokens", "positions", "kv_extent", "kv_dtype", "batch", "engine", "tp", "pp", "fleet"),
    "decode": ("model", "passes", "prompt_tokens", "batch", "attention", "sampling"),
    "time": ("model", "fleet", "pricing", "prompt_tokens", "passes", "batch", "kv_dtype", "weights_dtype", "kv_extent",
             "prefill_chunk", "engine", "tp", "pp"),
}  # fmt: skip
"""Figure -> the inputs that it follows from; the placement is one for all of them."""
_SIZES = (
    "dim", "hidden_dim", "n_layers", "n_heads", "n_kv_heads", "head_dim", "vocab_size", "seq_len", "parameters",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One line. `before` and `after` in words; `why` is empty where nothing that changed explains it."""

    group: str
    sign: Sign
    what: str
    before: str | None
    after: str | None
    why: str = ""


def changes_block(changes: list[Document], paint: Paint) -> list[list[str]]:
    """A block a group: `~ what  before -> after`, and why below; a plain sentence where nothing changed."""
    if not changes:
        return [["No changes: both plans say the same of every input, byte, copy and time."]]
    blocks = []
    for group in dict.fromkeys(str(change["group"]) for change in changes):
        lines = [paint(group.capitalize(), "bold")]
        for change in [change for change in changes if change["group"] == group]:
            sides = [change["before"], change["after"]]
            told = " -> ".join(safe(side) for side in sides if side is not None)
            mark = paint(change["sign"], {"~": "yellow", "+": "green", "-": "red"}.get(change["sign"]))
            lines += paint.fold(f"  {mark} {safe(change['what'])}  {told}", 8)
            lines += paint.fold(f"      {safe(change['why'])}", 6) if change["why"] else []
        blocks.append(lines)
    signs = [change["sign"] for change in changes]
    told = ", ".join(f"{signs.count(sign)} {word}" for sign, word in (("~", "changed"), ("+", "new"), ("-", "gone")))
    return [*blocks, [f"{len(changes)} changes: {told}."]]


def plan_changes(a: Document, b: Document) -> list[Document]:
    """Every change from plan `a` to plan `b`, grouped in the order of `GROUPS`; none where nothing changed."""
    inputs = _inputs(a, b)
    found = [*_verdict(a, b, inputs), *inputs.values(), *_placement(a, b), *_memory(a, b, inputs)]
    extents = {mapping(mapping(plan.get("inputs")).get("workload")).get("kv_extent") for plan in (a, b)}
    # What a cache is allocated for moves with the handoff only where all of it is handed over.
    moved = inputs if "allocated" in extents else {key: told for key, told in inputs.items() if key != "positions"}
    found += [*_rows(a, b, moved), *_edges(a, b), *_time(a, b, moved)]
    return [asdict(change) for change in found]


def _said(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return "none" if value is None else "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_said(entry)}" for key, entry in value.items() if key != "digest")[:200]
    return ", ".join(map(_said, value))[:200] if isinstance(value, list) else str(value)[:200]


def _sign(before: object, after: object) -> Sign:
    return "+" if before is None else "-" if after is None else "~"


def _change(group: str, what: str, before: object, after: object, why: str = "") -> Change:
    told = [None if value is None else _said(value) for value in (before, after)]
    return Change(group=group, sign=_sign(before, after), what=what, before=told[0], after=told[1], why=why)


def _inputs(a: Document, b: Document) -> dict[str, Change]:
    """Changed inputs by name. A fleet or model of the same name and another digest says that its content changed."""
    one, two = mapping(a.get("inputs")), mapping(b.get("inputs"))
    found: dict[str, Change] = {}
    for name in ("model", "fleet"):
        was, now = mapping(one.get(name)), mapping(two.get(name))
        if was.get("digest") != now.get("digest"):
            names = [f"{each.get('name')} ({str(each.get('digest'))[:12]})" for each in (was, now)]
            found[name] = _change("inputs", name, names[0], names[1])
        for key in (*_SIZES, "weights_dtype", "sku"):
            if was.get(key) != now.get(key) and key not in found:
                found[f"{name} {key}"] = _change("inputs", f"{name} {key}", was.get(key), now.get(key))
    work = (mapping(one.get("workload")), mapping(two.get("workload")))
    where = (mapping(one.get("placement")), mapping(two.get("placement")))
    parts: list[tuple[str, Any, Any]] = [(key, work[0].get(key), work[1].get(key)) for key in _keys(*work)]
    parts += [(key, one.get(key), two.get(key)) for key in ("utilization", "reserve_bytes", "engine", "pricing")]
    parts += [(key, where[0].get(key), where[1].get(key)) for key in ("tp", "pp")]
    for key, before, after in parts:
        if before != after:
            found[key] = _change("inputs", key, before, after)
    return found


def _keys(one: Mapping[str, Any], two: Mapping[str, Any]) -> list[str]:
    return [key for key in dict.fromkeys((*one, *two)) if key != "digest"]


def _placement(a: Document, b: Document) -> list[Change]:
    one, two = mapping(a.get("placement")), mapping(b.get("placement"))
    return [
        _change("placement", phase, one.get(phase), two.get(phase))
        for phase in ("prefill", "decode")
        if one.get(phase) != two.get(phase)
    ]


def because(figure: str, inputs: Mapping[str, Change]) -> str:
    """`since positions 96 -> 128`: of the inputs that a figure follows from, those that changed."""
    names = [name for name in _DEPENDS.get(figure, ()) if name in inputs]
    if "model" in _DEPENDS.get(figure, ()):
        names += [name for name in inputs if name.startswith("model ") and "model" not in inputs]
    told = [f"{name} {inputs[name].before or 'none'} -> {inputs[name].after or 'none'}" for name in names[:3]]
    return f"since {' and '.join(told)}" if told else ""


def _gain(before: int | None, after: int | None) -> str:
    if before is None or after is None:
        return ""
    sign = "+" if after > before else "-"
    return f" ({sign}{format_bytes(abs(after - before))})"


def _by_device(plan: Document) -> dict[str, Document]:
    return {entry["device"]: entry for entry in plan.get("memory") or []}


def _memory(a: Document, b: Document, inputs: Mapping[str, Change]) -> list[Change]:
    """Line by line; devices of equal figures in both plans are told together."""
    one, two = _by_device(a), _by_device(b)
    alike: dict[str, list[str]] = {}
    for device in dict.fromkeys((*one, *two)):
        figures = [_figures(plan[device]) if device in plan else None for plan in (one, two)]
        alike.setdefault(repr(figures), []).append(device)
    found = []
    for devices in alike.values():
        was, now = one.get(devices[0]), two.get(devices[0])
        name = named_alike(devices)
        if was is None or now is None:
            before, after = (None if entry is None else format_bytes(entry["total_bytes"]) for entry in (was, now))
            why = "takes no part in the other plan"
            sign = _sign(before, after)
            found.append(Change(group="memory", sign=sign, what=name, before=before, after=after, why=why))
        else:
            found += _lines(name, was, now, inputs)
    return found


def _figures(entry: Document) -> tuple[Any, ...]:
    return (
        entry["resident"],
        *(entry[f"{name}_bytes"] for name in ("rounding", "total", "budget", "capacity", "slack")),
    )


def _lines(name: str, was: Document, now: Document, inputs: Mapping[str, Change]) -> list[Change]:
    found = []
    for line in dict.fromkeys((*was["resident"], *now["resident"])):
        figures = was["resident"].get(line, 0), now["resident"].get(line, 0)
        found += _bytes("memory", f"{name} {line}", *figures, because(line, inputs))
    for field in ("rounding", "total", "budget", "capacity"):
        why = because("budget", inputs) if field in ("budget", "capacity") else ""
        found += _bytes("memory", f"{name} {field}", was[f"{field}_bytes"], now[f"{field}_bytes"], why)
    return found + _bytes("memory", f"{name} slack", was["slack_bytes"], now["slack_bytes"], _fit(was, now))


def _bytes(group: str, what: str, before: int | None, after: int | None, why: str) -> list[Change]:
    if before == after:
        return []
    told = format_bytes(after) + _gain(before, after)
    return [Change(group=group, sign="~", what=what, before=format_bytes(before), after=told, why=why)]


def _fit(was: Document, now: Document) -> str:
    before, after = was["slack_bytes"], now["slack_bytes"]
    if before is None or after is None:
        return "what is left is not known" if after is None else "what is left is known now"
    if before >= 0 > after:
        return f"no longer fits: short by {format_bytes(-after)}"
    if before < 0 <= after:
        return "fits now"
    return "less is left" if after < before else "more is left"


def _verdict(a: Document, b: Document, inputs: Mapping[str, Change]) -> list[Change]:
    """The verdict with the device that decides it and the line that grew most, or the reasons that came or went."""
    if a["verdict"] == b["verdict"]:
        return []
    one, two = _by_device(a), _by_device(b)
    told = []
    for device in sorted(one.keys() & two.keys()):
        was, now = one[device], two[device]
        if (was["slack_bytes"] or 0) >= 0 > (now["slack_bytes"] or 0):
            told.append(f"{device} {_fit(was, now)}{_grown(was, now, inputs)}")
        elif (was["slack_bytes"] or 0) < 0 <= (now["slack_bytes"] or 0):
            told.append(f"{device} fits now{_grown(was, now, inputs)}")
    if not told:
        codes = [{str(reason["code"]) for reason in plan.get("reasons") or []} for plan in (a, b)]
        told += [f"{code} is new" for code in sorted(codes[1] - codes[0])]
        told += [f"{code} is gone" for code in sorted(codes[0] - codes[1])]
    return [_change("verdict", "verdict", a["verdict"], b["verdict"], "; ".join(sorted(told)))]


def _grown(was: Document, now: Document, inputs: Mapping[str, Change]) -> str:
    """The part of what a device needs, or may use, that changed most, and since what."""
    gains = {
        line: nbytes - (was["resident"].get(line) or 0)
        for line, nbytes in now["resident"].items()
        if nbytes is not None and was["resident"].get(line) is not None
    }
    if was["budget_bytes"] is not None and now["budget_bytes"] is not None:
        gains["budget"] = now["budget_bytes"] - was["budget_bytes"]
    line = max(gains, key=lambda name: abs(gains[name]), default=None)
    if line is None or not gains[line]:
        return ""
    since = because(line, inputs)
    return f": {line} {'+' if gains[line] > 0 else '-'}{format_bytes(abs(gains[line]))}{f' {since}' if since else ''}"


def _rows(a: Document, b: Document, inputs: Mapping[str, Change]) -> list[Change]:
    """Rows end to end, copies with them."""
    return [
        change
        for key, was, now in _matched(a.get("waybill"), b.get("waybill"), ("phase", "tensor", "src", "dst", "kind"))
        for change in _moved("rows", "{} {} {} -> {} ({})".format(*key), was, now, because(key[0], inputs))
    ]


def _edges(a: Document, b: Document) -> list[Change]:
    return [
        change
        for key, was, now in _matched(a.get("edges"), b.get("edges"), ("src", "dst", "kind"))
        for change in _moved("edges", "{} -> {} ({})".format(*key), was, now, "")
    ]


Sums = tuple[int | None, int | None]


def _matched(
    one: Iterable[Document] | None, two: Iterable[Document] | None, fields: tuple[str, ...]
) -> list[tuple[tuple[str, ...], Sums | None, Sums | None]]:
    """(key, bytes and copies before, after); rows of one key are added up."""
    sums: list[dict[tuple[str, ...], Sums]] = []
    for rows in (one, two):
        found: dict[tuple[str, ...], Sums] = {}
        for row in rows or []:
            key = tuple(str(row[field]) for field in fields)
            nbytes, copies = found.get(key, (0, 0))
            found[key] = _sum(nbytes, row["bytes"]), _sum(copies, row["copies"])
        sums.append(found)
    return [(key, sums[0].get(key), sums[1].get(key)) for key in dict.fromkeys((*sums[0], *sums[1]))]


def _sum(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b


def _moved(group: str, what: str, was: Sums | None, now: Sums | None, why: str) -> list[Change]:
    if was == now:
        return []
    told = [None if each is None else _carried(each) for each in (was, now)]
    if was is not None and now is not None and told[1] is not None:
        told[1] += _gain(was[0], now[0]) if was[0] != now[0] else ""
    return [Change(group=group, sign=_sign(was, now), what=what, before=told[0], after=told[1], why=why)]


def _carried(sums: Sums) -> str:
    return f"{format_bytes(sums[0])} in {'unknown' if sums[1] is None else f'{sums[1]:,}'} copies"


def _time(a: Document, b: Document, inputs: Mapping[str, Change]) -> list[Change]:
    one, two = mapping(a.get("time")), mapping(b.get("time"))
    hands = [mapping(plan.get("handoff")).get("seconds") for plan in (a, b)]
    parts = [("TTFT", one.get("ttft_s"), two.get("ttft_s")), ("TPOT", one.get("tpot_s"), two.get("tpot_s"))]
    found = []
    for what, before, after in (*parts, ("handoff", hands[0], hands[1])):
        if before == after:
            continue
        told = ["unpriced" if value is None else time_words(value) for value in (before, after)]
        share = f" ({(after - before) / before:+.1%})" if before and after is not None else ""
        why = because("handoff" if what == "handoff" else "time", inputs)
        if refused := [
            plan for plan, value in ((a, before), (b, after)) if value is None and plan["verdict"] == "refused"
        ]:
            why = f"a {refused[0]['verdict']} plan has no times"
        found.append(Change(group="time", sign="~", what=what, before=told[0], after=told[1] + share, why=why))
    return found
