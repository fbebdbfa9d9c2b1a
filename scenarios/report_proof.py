"""A proof as text for people: the honest runs, and checks x sabotages."""

from __future__ import annotations

from typing import Any

from scenarios.report_run import checks_block
from scenarios.table import Paint, Table, safe
from scenarios.words import (
    COLOR_OF,
    asked,
    defaults_block,
    joined,
    limits_block,
    listing,
    mapping,
    placed,
    verdict_word,
    without_repeats,
)

Document = dict[str, Any]


def proof_text(proof: Document, *, color: bool = False, width: int | None = None) -> str:
    """A proof: verdict, the clean runs, checks x sabotages, what went wrong, limits."""
    paint = Paint(color, width)
    matrix = proof.get("matrix") or []
    tried = [row for row in matrix if row["verdict"] != "waived"]
    caught = sum(1 for row in tried if row["verdict"] == "caught")
    head = f"{verdict_word(proof['verdict'], paint)}  {caught} of {len(tried)} sabotages caught as they must be"
    wrong = [f"{row['sabotage']}: {row.get('detail', '')}" for row in tried if row["verdict"] != "caught"]
    never = [f"{name}: passed, but no sabotage made it fail" for name in proof.get("never_failed") or []]
    blocks = [[*paint.fold(head), *_asked(proof, paint)], _texts(proof, paint), *_clean_runs(proof, paint)]
    blocks += _matrix(matrix, paint)
    blocks.append(listing("Not proved because", wrong + never, paint))
    return joined([*blocks, defaults_block(proof, paint), limits_block(proof, paint)])


def _asked(proof: Document, paint: Paint) -> list[str]:
    """The request of the split run, which all others repeat."""
    inputs = mapping(mapping(mapping(proof.get("runs")).get("split")).get("inputs"))
    where = placed(inputs, mapping(inputs.get("placement")))
    return [*(paint.fold(where, 2) if where else []), *asked(inputs, proof.get("plan_id"), paint)]


_SPOKEN = {
    "split": "with the handoff",
    "without_handoff_poisoned": "handoff deleted, the cache holds other bits",
    "without_handoff_zeroed": "handoff deleted, the cache holds zeros",
}
_SPOKEN_CHARACTERS = 400


def _texts(proof: Document, paint: Paint) -> list[str]:
    """What the run said, and what it says where the handoff was deleted; nothing for a run without a text."""
    runs = mapping(proof.get("runs"))
    lines = []
    for name, told in _SPOKEN.items():
        if text := mapping(runs.get(name)).get("text"):
            shown = " ".join(without_repeats(line) for line in str(text).splitlines())[:_SPOKEN_CHARACTERS]
            lines += paint.fold(f"  {told}: {safe(shown)}", 4)
    return [paint("Text", "bold"), *lines] if lines else []


def _clean_runs(proof: Document, paint: Paint) -> list[list[str]]:
    """The checks of the comparisons made of runs that nobody sabotaged."""
    blocks = []
    for entry in proof.get("comparisons") or []:
        comparison = entry.get("comparison") or entry
        if "checks" not in comparison:
            continue
        name = paint(safe(str(entry.get("name", "run"))), "bold")
        head = f"{name}: {verdict_word(comparison['verdict'], paint)}"
        blocks.append([head, *checks_block(comparison["checks"], paint, title="", indent="  ")])
    return blocks


MARKS = {(True, True): ("F", "green"), (True, False): ("f", None), (False, True): ("?", "red")}
"""(failed, must fail) -> mark: F as it must, f beside that, ? where it should have failed."""
LEGEND = (
    "F failed, as it must; f failed beside that; p passed, as it must; . free to fail or pass; - does not apply here;"
    " ! failed though it must pass; ? passed though it must fail"
)


def _matrix(matrix: list[Document], paint: Paint) -> list[list[str]]:
    """Checks down, sabotages across by number, with the sabotages named below."""
    if not matrix:
        return []
    checks = list(
        dict.fromkeys(name for row in matrix for key in ("must_fail", "must_pass", "failed") for name in row[key])
    )
    title = "Checks x sabotages"
    left = max(len(title), *(len(safe(check)) + 2 for check in checks))
    numbers = [str(index) for index in range(1, len(matrix) + 1)]
    high = max(len(number) for number in numbers)
    lines = []
    # The numbers stand upright, a digit a line, so that a cell takes two columns and the matrix fits a terminal.
    for digit in range(high):
        first = paint(title, "bold") + " " * (left - len(title)) if digit == high - 1 else " " * left
        lines.append((first + "".join(f" {number.rjust(high)[digit]}" for number in numbers)).rstrip())
    for check in checks:
        cells = "".join(f" {paint(*mark(check, row))}" for row in matrix)
        lines.append(f"  {safe(check)}".ljust(left) + cells)
    names = Table("Sabotages", "verdict", "name", "what failed")
    for number, row in zip(numbers, matrix, strict=True):
        told = ", ".join(row["failed"]) or row.get("detail") or "nothing failed"
        names.add(number, row["verdict"], row["sabotage"], told, colors=(None, COLOR_OF.get(row["verdict"], "red")))
    return [[*lines, *paint.fold(f"  {LEGEND}", 2)], names.lines(paint)]


def mark(check: str, row: Document) -> tuple[str, str | None]:
    if row["verdict"] == "waived":
        return "-", "dim"
    failed = check in row["failed"]
    if check in row["must_pass"]:
        return ("!", "red") if failed else ("p", None)
    return MARKS.get((failed, check in row["must_fail"]), (".", "dim"))
