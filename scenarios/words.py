"""What the texts of all documents share: verdict words, the line that says what was asked, lists, figures."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any, TypeGuard

from fleet.units import PS_PER_SECOND, format_seconds
from scenarios.table import Paint, safe

Document = dict[str, Any]

COLOR_OF = {
    "admitted": "green", "equal": "green", "match": "green", "passed": "green", "proved": "green", "caught": "green",
    "refused": "red", "different": "red", "mismatch": "red", "missing": "red", "unplanned": "red", "failed": "red",
    "not proved": "red", "missed": "red", "error": "red",
    "unverified": "yellow", "inconclusive": "yellow", "unwitnessed": "yellow", "unknown": "yellow", "warning": "yellow",
    "waived": "dim",
}  # fmt: skip


def joined(blocks: list[list[str]]) -> str:
    """Blocks of lines, a blank line between them; empty blocks are left out."""
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def verdict_word(word: str, paint: Paint) -> str:
    return paint(word.upper(), COLOR_OF.get(word))


def listing(title: str, words: list[str], paint: Paint) -> list[str]:
    """A title and one item a line."""
    lines = [line for word in words for line in paint.fold(f"  - {safe(word)}", 4)]
    return [*paint.fold(paint(title, "bold")), *lines] if words else []


def defaults_block(document: Document, paint: Paint) -> list[str]:
    return listing("Chosen, because nobody said otherwise", document.get("defaults") or [], paint)


def limits_block(document: Document, paint: Paint) -> list[str]:
    return listing("Limits", document.get("limits") or [], paint)


def with_limits(text: str, limits: list[str], *, color: bool = False, width: int | None = None) -> str:
    """Finished text with its limits below."""
    return joined([[text.rstrip("\n")], listing("Limits", limits, Paint(color, width))])


def mapping(value: Any) -> Document:
    """A part of a document that need not be there and that nobody checked: anything but an object says nothing."""
    return value if isinstance(value, dict) else {}


def _whole(value: Any) -> int | None:
    return value if type(value) is int else None


def placed(inputs: Document, placement: Document) -> str:
    """`seeded-260K on two-gpu-nvlink, prefill gpu:0, decode gpu:1`; what is not known is left out."""
    names = [mapping(inputs.get(what)).get("name") for what in ("model", "fleet")]
    parts = [f"{names[0]} on {names[1]}"] if all(names) else []
    parts += [f"{phase} {placement[phase]}" for phase in ("prefill", "decode") if placement.get(phase)]
    return safe(", ".join(parts))


_ASKED = (
    ("batch", "batch"), ("weights_dtype", "weights"), ("kv_dtype", "KV"), ("kv_extent", "extent"),
    ("attention", "attention"),
)  # fmt: skip


def asked(inputs: Document, plan_id: str | None, paint: Paint) -> list[str]:
    """`asked: 41 prompt + 56 new tokens in 96 passes, batch 1, ..., plan 51c0a048a3ed`, from a document's `inputs`."""
    parts = request_words(inputs)
    if plan_id:
        parts.append(f"plan {plan_id[:12]}")
    return paint.fold(safe("asked: " + ", ".join(parts)), 7) if parts else []


def request_words(inputs: Document) -> list[str]:
    """What `inputs.workload` asks for, a phrase each."""
    work = mapping(inputs.get("workload"))
    parts = []
    prompt, passes, positions = (_whole(work.get(name)) for name in ("prompt_tokens", "passes", "positions"))
    if prompt is not None and passes is not None:
        new = max(0, passes - prompt + 1)
        parts.append(f"{prompt:,} prompt + {new:,} new {plural(new, 'token')} in {passes:,} {plural(passes, 'pass')}")
    parts += [f"{word} {work[key]}" for key, word in _ASKED if work.get(key) is not None]
    if positions not in (None, passes):
        parts.append(f"cache of {positions:,} positions")
    if work.get("layout", "plain") != "plain":
        parts.append(f"layout {work['layout']}")
    if work.get("prefill_chunk", 1) != 1:
        parts.append(f"prefill chunk {work['prefill_chunk']}")
    if drawn := mapping(work.get("sampling")):
        parts.append(f"temperature {drawn.get('temperature')}, top-p {drawn.get('top_p')}, seed {drawn.get('seed')}")
    return parts


def plural(count: int, word: str) -> str:
    """`1 pass`, `2 passes`: the word alone."""
    if count == 1:
        return word
    return word + ("es" if word.endswith("s") else "s")


def count_of(count: int | None) -> str:
    return "-" if count is None else f"{count:,}"


def exact_bytes(figure: int | None) -> str:
    """Bytes in a table that is full: exact only."""
    return "-" if figure is None else f"{figure:,} B"


def seconds_of(part: Document) -> str:
    """The time of a row, a leg or a handoff: `>=` where a link without latency makes it a lower bound."""
    seconds = part.get("seconds")
    if seconds is None:
        return "unpriced"
    return (">= " if part.get("lower_bound") else "") + time_words(seconds)


def _is_number(value: object) -> TypeGuard[int | float]:
    return type(value) in (int, float)


def standing_of(part: Document) -> str:
    """`error 8 %` where one is stated of the time; `unscored`: no run was compared with it."""
    error = part.get("error")
    if not _is_number(error):
        legs = [leg.get("error") for leg in part.get("legs") or ()]
        known = [each for each in legs if _is_number(each)]
        if not known or len(known) != len(legs):
            return "unscored"
        error = max(known)
    return f"error {float(error) * 100:.3g} %"


def scored_time(part: Document) -> str:
    """A time that stands alone: `1.36 ms, unscored`, `>= 254 ns, error 8 %`, `unpriced`."""
    told = seconds_of(part)
    return told if part.get("seconds") is None else f"{told}, {standing_of(part)}"


def time_words(seconds: float) -> str:
    """A time with its unit. By fractions: a document of others may hold a number that a float cannot multiply."""
    return format_seconds(round(Fraction(seconds) * PS_PER_SECOND), digits=4)


_REPEATED = re.compile(r"(.{1,16}?)\1{7,}", re.DOTALL)
_LONGEST_FOLDED = 100_000


def without_repeats(line: str) -> str:
    """A line in which eight and more repetitions of a piece stand once, as ` [<unk> x 49] `."""
    if len(line) > _LONGEST_FOLDED:
        return line

    def told(found: re.Match[str]) -> str:
        piece = found[1]
        return f"[{piece} x {len(found[0]) // len(piece)}]"

    return _REPEATED.sub(told, line)


def fix_words(fix: Document) -> str:
    """`--positions 64 (was 128)`, changes that belong together joined by `and`."""
    changes = [fix, *fix.get("and", [])]
    return " and ".join(_change_words(change) for change in changes)


def _flow(row: Document) -> str:
    """A row as fleet.yaml takes it, on one line; its words are ids and choices, which need no quotes."""
    return "{" + ", ".join(f"{name}: {value}" for name, value in row.items()) + "}"


def _change_words(change: Document) -> str:
    where = change.get("flag") or change.get("field") or "?"
    if change.get("to") is True:
        return safe(str(where))  # a flag without a value
    if change.get("to") is None and change.get("flag", change.get("from")):
        return safe(f"without {where} (was {change.get('from')})")
    if isinstance(change.get("to"), dict):
        return safe(f"add under {where.removesuffix('[+]')}: - {_flow(change['to'])}")
    between = " " if change.get("flag") else ": "
    was = "" if change.get("from") is None else f" (was {change['from']})"
    alike = f" (one of {change['alike']} alike)" if change.get("alike") else ""
    told = "if it is so, " if change.get("unknown") else ""
    return safe(f"{told}{where}{between}{change.get('to')}{was}{alike}")
