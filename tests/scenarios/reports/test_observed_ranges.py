"""Printed figures in pictures: both ends of what they may stand for, out of the specification that is drawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scenarios.cli.__main__ import main
from scenarios.reports.edge_figures import closely_figure, edges_figure
from scenarios.reports.making import Given, report_text
from scenarios.reports.render import png_of
from scenarios.reports.specs import joined_spec, spec_of

Document = dict[str, Any]
MOVED = 148_635_648
"""63 blocks of 16 tokens of 36 layers x (K, V) x 8 heads x 128 x 2 B."""


def compared(*ranges: tuple[int | None, list[int] | None, str]) -> Document:
    """A comparison with an observation; each row (observed, its interval, verdict), of an edge of its own."""
    rows = [
        {
            "phase": "handoff", "tensor": "kv", "src": f"gpu:{at}", "dst": f"gpu:{at + 1}", "kind": "p2p",
            "predicted_bytes": MOVED, "counted_bytes": None, "observed_bytes": exact, "difference": None,
            "predicted_copies": 4536, "counted_copies": None, "observed_copies": None,
            "observed_bytes_interval": ends, "witness": "import", "verdict": verdict,
        }
        for at, (exact, ends, verdict) in enumerate(ranges)
    ]  # fmt: skip
    return {
        "schema": "kvwaybill/comparison/1", "compared": ["plan", "observation"], "verdict": "equal", "rows": rows,
        "checks": [], "limits": ["a limit"],
    }  # fmt: skip


def layers(spec: Any) -> list[Document]:
    """Every layer with a mark, wherever it stands."""
    found = []
    if isinstance(spec, dict):
        found += [spec] if "mark" in spec else []
        found += [each for value in spec.values() for each in layers(value)]
    elif isinstance(spec, list):
        found += [each for value in spec for each in layers(value)]
    return found


def rows_of(spec: Document) -> list[Document]:
    if "values" in spec.get("data", {}):
        return list(spec["data"]["values"])
    return [row for values in spec.get("datasets", {}).values() for row in values]


def test_a_range_has_a_bar_to_its_least_and_a_tick_at_both_ends() -> None:
    figure = edges_figure(compared((None, [MOVED - 524, MOVED + 524], "match")))
    assert figure is not None
    spec = spec_of(figure)
    (row,) = [row for row in rows_of(spec) if row.get("who") == "observed"]
    assert (row["value"], row["low"], row["high"]) == (MOVED - 524, MOVED - 524, MOVED + 524)
    assert row["interval"] == [MOVED - 524, MOVED + 524]
    assert row["told"] == "148,635,124 to 148,636,172 B (141.75 MiB)"
    ticks = [layer["encoding"]["x"]["field"] for layer in layers(spec) if layer["mark"]["type"] == "tick"]
    assert ticks == ["low", "high"]
    spans = [layer["encoding"] for layer in layers(spec) if "x2" in layer["encoding"]]
    assert any(each["x"].get("field") == "low" and each["x2"].get("field") == "high" for each in spans)
    assert {row["who"] for row in rows_of(spec)} == {"predicted", "observed"}, "nobody counted beside an engine"


def test_a_range_from_nothing_begins_at_the_axis_and_one_figure_has_no_ticks() -> None:
    document = compared(
        (None, [0, MOVED], "unwitnessed"), (MOVED, [MOVED, MOVED], "match"), (None, None, "unwitnessed")
    )
    figure = edges_figure(document)
    assert figure is not None
    first, second, third = [row for row in figure.rows if row["who"] == "observed"]
    assert (first["low"], first["high"], first["value"]) == (1, MOVED, None)
    assert first["told"].endswith(", unwitnessed")
    assert "low" not in second
    assert second["bytes"] == MOVED
    assert third["told"] == "unwitnessed"
    exact = edges_figure(compared((MOVED, [MOVED, MOVED], "match")))
    assert exact is not None
    assert not [layer for layer in layers(spec_of(exact)) if layer["mark"]["type"] == "tick"]


@pytest.mark.parametrize(
    ("ends", "verdict", "low", "high", "inside"),
    [
        ([MOVED - 524, MOVED + 524], "match", -524, 524, True),
        ([MOVED, MOVED + 1], "match", 0, 1, True),
        ([MOVED + 1, MOVED + 9], "mismatch", 1, 9, False),
        ([0, MOVED - 1], "mismatch", -MOVED, -1, False),
    ],
)
def test_the_close_picture_is_the_range_less_the_prediction(
    ends: list[int], verdict: str, low: int, high: int, inside: bool
) -> None:
    figure = closely_figure(compared((None, ends, verdict)))
    assert figure is not None
    (row,) = figure.rows
    assert (row["low"], row["high"], row["inside"]) == (low, high, inside)
    assert row["told"] == f"{low:+,} to {high:+,} B: the prediction lies {'inside' if inside else 'outside'}"
    spec = spec_of(figure)
    domain = next(
        layer["encoding"]["x"]["scale"]["domain"] for layer in layers(spec) if "scale" in layer["encoding"]["x"]
    )
    assert domain[0] < min(low, 0) <= max(high, 0) < domain[1], "both ends and the prediction lie within the picture"
    assert png_of(spec).startswith(b"\x89PNG")


def test_what_was_not_judged_or_is_exact_is_not_set_beside_closely() -> None:
    for row in ((None, [0, MOVED], "unwitnessed"), (MOVED, [MOVED, MOVED], "match"), (None, None, "unwitnessed")):
        figure = closely_figure(compared(row))
        assert figure is not None
        assert figure.rows == []


def test_both_pictures_stand_in_the_page_and_the_numbers_in_the_table() -> None:
    document = compared((None, [MOVED - 524, MOVED + 524], "match"))
    given = [Given(kind="comparison", document=document, source="cmp.json")]
    page = report_text("html", given)
    assert page.count("<figure>") == 2
    assert "148,635,124 to 148,636,172 B" in page
    assert len(joined_spec(given)["vconcat"]) == 2


@pytest.mark.parametrize(
    "ends", ["ab", [1], [1, 2, 3], [2, 1], [-1, 4], [1.5, 2], {"low": 1}, [True, 2], [None, None], [1, 2**63]]
)
def test_an_interval_that_is_none_is_a_fault_with_its_place(
    ends: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cmp.json"
    path.write_text(json.dumps(compared((None, ends, "match"))))
    assert main(["report", str(path), "-o", "md"]) == 2
    told = capfd.readouterr().err
    assert "rows[0].observed_bytes_interval" in told
