"""Sets two documents side by side: plan with run, plan with plan, run with run. Dictionaries in, a dictionary out.

Predicted, counted and observed stay three figures: the plan's, the ledger's, the witness's. Nothing here computes a
byte of its own except to scale a row to the passes that a run really made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fleet.errors import DescriptionError
from scenarios.case import Case, Expected, Proof
from scenarios.limits import comparison_limits

Document = dict[str, Any]
Key = tuple[str, str, str, str, str]
"""phase, tensor, and the leg's src, dst and kind."""

_NO_FIGURES: Document = {"memory": [], "waybill": [], "edges": []}


@dataclass(slots=True)
class Figures:
    """What one document says of one leg. `observed_*` None = no witness saw it; `full` = before scaling down."""

    bytes: int | None = 0
    copies: int | None = 0
    observed_bytes: int | None = None
    observed_copies: int | None = None
    witness: str = "none"
    full: int | None = None


def compare(a: Document, b: Document, *, proof: Proof | None = None) -> Document:
    """The comparison document (`kvwaybill/comparison/1`) of a predicted `a` and an observed `b`.

    `proof` holds the further runs that `prove` made; with it the three checks of a proof are judged as well. Raises
    DescriptionError for two documents that cannot be set side by side.
    """
    from scenarios.checks import judge

    # A plan whose model is not understood carries no figures at all.
    a, b = _NO_FIGURES | a, _NO_FIGURES | b
    kinds = (_kind(a), _kind(b))
    if kinds == ("run", "plan"):
        raise DescriptionError.at("compare", "", "a run stands first and a plan second; write: compare PLAN RUN")
    if kinds == ("plan", "run") and a["verdict"] != "admitted":
        raise DescriptionError.at("compare", "verdict", f"the plan was {a['verdict']}; only an admitted plan has runs")
    measured = kinds == ("plan", "run")
    expected = Expected.of(a, b) if measured else None
    rows = compare_rows(legs_of(a, expected), legs_of(b), measured=measured)
    case = Case(a=a, b=b, rows=rows, expected=expected, proof=proof)
    checks = judge(case)
    document: Document = {
        "schema": "kvwaybill/comparison/1",
        "compared": list(kinds),
        "verdict": verdict_of(checks),
        "rows": rows,
        "checks": checks,
        "limits": comparison_limits(a, b),
    }
    if expected is not None and expected.shortened:
        document["passes"] = {"made": expected.made, "full_length": expected.full}
    return document


def _kind(document: Document) -> str:
    return str(document["schema"]).split("/")[1]


def verdict_of(checks: Iterable[Mapping[str, Any]]) -> str:
    """`different` if any check failed, else `inconclusive` if a required one is, else `equal`."""
    results = [(check["result"], check["required"]) for check in checks]
    if any(result == "failed" for result, _ in results):
        return "different"
    return "inconclusive" if ("inconclusive", True) in results else "equal"


def legs_of(document: Document, expected: Expected | None = None) -> dict[Key, Figures]:
    """Figures by leg, in the document's order. Rows of one key are added up: a copy made twice counts twice.

    With `expected` the rows are scaled to the passes that were made, the full-length figure beside.
    """
    legs: dict[Key, Figures] = {}
    for row in document["waybill"]:
        # A row whose physical way is unknown has no legs; it is compared end to end.
        parts = row.get("legs") or [row]
        for leg in parts:
            key = (row["phase"], row["tensor"], leg["src"], leg["dst"], leg["kind"])
            seen = row if len(parts) == 1 and "witness" not in leg and "observed_bytes" not in leg else leg
            figures = _figures(row, leg, seen, expected)
            legs[key] = _added(legs[key], figures) if key in legs else figures
    return legs


def _figures(row: Document, leg: Document, seen: Document, expected: Expected | None) -> Figures:
    figures = Figures(
        bytes=leg["bytes"],
        copies=leg["copies"],
        observed_bytes=seen.get("observed_bytes"),
        observed_copies=seen.get("observed_copies"),
        witness=seen.get("witness") or "none",
    )
    if expected is not None and expected.shortened:
        figures.full = figures.bytes
        figures.bytes, figures.copies = expected.scale(row, figures.bytes, figures.copies)
    return figures


def _sum(first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else first + second


def _added(first: Figures, second: Figures) -> Figures:
    return Figures(
        bytes=_sum(first.bytes, second.bytes),
        copies=_sum(first.copies, second.copies),
        observed_bytes=_sum(first.observed_bytes, second.observed_bytes),
        observed_copies=_sum(first.observed_copies, second.observed_copies),
        witness=first.witness if first.witness == second.witness else "none",
        full=_sum(first.full, second.full),
    )


def compare_rows(predicted: Mapping[Key, Figures], found: Mapping[Key, Figures], *, measured: bool) -> list[Document]:
    """One comparison row a leg: those of A in A's order, then those that only B has.

    `measured`: B is a run that counted, perhaps with a witness. Otherwise B's figures stand as observed, and nothing
    was counted.
    """
    rows = []
    for key in [*predicted, *(key for key in found if key not in predicted)]:
        want, got = predicted.get(key), found.get(key)
        if want is not None and got is None and want.full and not want.bytes:
            continue  # a row of passes that a run stopped early never came to
        rows.append(_measured_row(key, want, got) if measured else _plain_row(key, want, got))
    return rows


def _ends(key: Key) -> Document:
    return dict(zip(("phase", "tensor", "src", "dst", "kind"), key, strict=True))


def _measured_row(key: Key, want: Figures | None, got: Figures | None) -> Document:
    planned, counted = want or Figures(), got or Figures()
    row = _ends(key) | {
        "predicted_bytes": planned.bytes,
        "counted_bytes": counted.bytes,
        "observed_bytes": counted.observed_bytes,
        "difference": _difference(planned.bytes, counted.observed_bytes, counted.bytes),
        "predicted_copies": planned.copies,
        "counted_copies": counted.copies,
        "observed_copies": counted.observed_copies,
        "witness": counted.witness,
        "verdict": _verdict(planned, counted),
    }
    if planned.full is not None:
        row["predicted_full_bytes"] = planned.full
    return row


def _difference(predicted: int | None, *figures: int | None) -> int | None:
    """The first figure that differs from the predicted one, less it; 0 when none does; None without a prediction."""
    if predicted is None:
        return None
    return next((figure - predicted for figure in figures if figure is not None and figure != predicted), 0)


def _verdict(planned: Figures, counted: Figures) -> str:
    if _nothing(counted) and not _nothing(planned):
        return "missing"
    if _nothing(planned) and not _nothing(counted):
        return "unplanned"
    if (counted.bytes, counted.copies) != (planned.bytes, planned.copies):
        return "mismatch"
    if counted.witness == "none" or counted.observed_bytes is None:
        return "unwitnessed"
    seen_otherwise = counted.observed_bytes != planned.bytes
    return "mismatch" if seen_otherwise or counted.observed_copies not in (None, planned.copies) else "match"


def _nothing(figures: Figures) -> bool:
    return figures.bytes == 0 and figures.copies == 0 and not figures.observed_bytes


def _plain_row(key: Key, want: Figures | None, got: Figures | None) -> Document:
    first, second = want or Figures(), got or Figures()
    if got is None:
        verdict = "missing"
    elif want is None:
        verdict = "unplanned"
    else:
        verdict = "match" if (first.bytes, first.copies) == (second.bytes, second.copies) else "mismatch"
    unknown = first.bytes is None or second.bytes is None
    return _ends(key) | {
        "predicted_bytes": first.bytes,
        "counted_bytes": None,
        "observed_bytes": second.bytes,
        "difference": None if unknown else _difference(first.bytes, second.bytes),
        "predicted_copies": first.copies,
        "counted_copies": None,
        "observed_copies": second.copies,
        "witness": "none",
        "verdict": verdict,
    }
