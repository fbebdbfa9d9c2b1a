"""The numbers in the pictures: taken from the specification that is drawn, and set beside the document."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import pytest

from fleet.catalog import catalog_names
from fleet.load import load_fleet
from fleet.units import parse_bytes
from scenarios.reports.figures import figures_of
from scenarios.reports.html import html_text
from scenarios.reports.making import Given, report_text
from scenarios.reports.render import png_of, svg_of
from scenarios.reports.shape import Figure
from scenarios.reports.specs import COLORS, joined_spec, spec_of
from scenarios.reports.topology import own_scene, topology_of
from tests.scenarios.made import plan
from tests.scenarios.reports.report_cases import HOSTILE, all_given, proof, records, run, simulation, sweep

Document = dict[str, Any]


def figure(kind: str, document: Document, name: str) -> Figure:
    (found,) = [each for each in figures_of(kind, document) if each.name == name]
    return found


def rows_in(spec: Any) -> Iterator[Document]:
    """Every row of data that a specification holds, wherever Altair put it."""
    if isinstance(spec, dict):
        for values in (spec.get("datasets") or {}).values():
            yield from values
        data = spec.get("data")
        if isinstance(data, dict) and isinstance(data.get("values"), list):
            yield from data["values"]
        for key, value in spec.items():
            if key not in ("datasets", "data"):
                yield from rows_in(value)
    elif isinstance(spec, list):
        for value in spec:
            yield from rows_in(value)


def test_the_memory_picture_holds_each_line_of_each_device_and_their_sum() -> None:
    planned = plan()
    rows = list(rows_in(spec_of(figure("plan", planned, "memory"))))
    entry = planned["memory"][0]
    lines = {row["line"]: row for row in rows if "line" in row}
    expected = {name: n for name, n in entry["resident"].items() if n} | {"rounding": entry["rounding_bytes"]}
    assert {name: row["bytes"] for name, row in lines.items() if name != "total"} == expected
    factor = parse_bytes(f"1 {lines['total']['unit']}")
    assert lines["total"]["to"] == entry["total_bytes"] / factor
    at = 0
    for name, nbytes in expected.items():
        assert (lines[name]["from"], lines[name]["to"]) == (at / factor, (at + nbytes) / factor)
        at += nbytes
    assert at == entry["total_bytes"]


def test_budget_and_capacity_are_drawn_where_they_are_or_said_to_lie_beyond() -> None:
    tight = plan(fleet="two-gpu-tight", steps=200)
    marks = figure("plan", tight, "memory").marks
    by_device = {entry["device"]: entry for entry in tight["memory"]}
    assert {mark["what"] for mark in marks} == {"budget", "capacity"}
    for mark in marks:
        assert mark["bytes"] == by_device[mark["device"]][f"{mark['what']}_bytes"]
    spec = spec_of(figure("plan", tight, "memory"))
    drawn = [row for row in rows_in(spec) if "what" in row]
    assert [row["bytes"] for row in drawn] == [mark["bytes"] for mark in marks if not mark["beyond"]]
    assert drawn
    told = str(spec)
    assert "beyond the axis" in told
    assert f"short by {-by_device['gpu:1']['slack_bytes']:,} B" in told


def test_predicted_stands_before_counted_before_observed_in_fixed_colours() -> None:
    spec = spec_of(figure("run", run(), "edges"))
    rows = list(rows_in(spec))
    assert [row["who"] for row in rows[:3]] == ["predicted", "counted", "observed"]
    assert rows[0]["edge"].startswith("KV handoff gpu:0 -> gpu:1")
    text = str(spec)
    for who in ("predicted", "counted", "observed"):
        assert COLORS[who] in text
    sums: dict[tuple[str, str], int | None] = {}
    for row in run()["comparison"]["rows"]:
        for who in ("predicted", "counted", "observed"):
            key = (f"{row['phase']} {row['src']} -> {row['dst']} ({row['kind']})", who)
            had, more = sums.get(key, 0), row[f"{who}_bytes"]
            sums[key] = None if had is None or more is None else had + more
    assert {(row["edge"].removeprefix("KV "), row["who"]): row["bytes"] for row in rows} == sums


def channels_in(spec: Any) -> set[str]:
    """Every channel with a field that any chart of a specification encodes."""
    if isinstance(spec, list):
        return set().union(*map(channels_in, spec))
    if not isinstance(spec, dict):
        return set()
    own = {name for name, told in spec.get("encoding", {}).items() if isinstance(told, dict) and "field" in told}
    return own.union(*(channels_in(value) for key, value in spec.items() if key not in ("datasets", "data")))


def test_pictures_below_one_another_share_no_scale() -> None:
    # A plan's one bar an edge beside a run's three: shared offsets squeezed the bars of both, and words lay on words.
    spec = joined_spec(all_given())
    scaled = channels_in(spec) & {"color", "shape", "size", "strokeDash", "x", "y", "xOffset", "yOffset"}
    assert {"yOffset", "shape"} <= scaled
    assert {name for name in scaled if spec["resolve"]["scale"].get(name) != "independent"} == set()


def test_what_no_witness_saw_has_no_bar_and_says_so() -> None:
    document = run()["comparison"]
    rows = [row | {"observed_bytes": None, "verdict": "unwitnessed"} for row in document["rows"]]
    found = figure("comparison", document | {"rows": rows}, "edges").rows
    assert {row["value"] for row in found if row["who"] == "observed"} == {None}
    assert {row["told"] for row in found if row["who"] == "observed"} == {"unwitnessed"}


def test_a_handoff_that_was_left_out_is_missing_and_not_unwitnessed() -> None:
    document = run()["comparison"]
    rows = [
        row | ({"counted_bytes": 0, "observed_bytes": None, "verdict": "missing"} if row["phase"] == "handoff" else {})
        for row in document["rows"]
    ]
    found = [row for row in figure("comparison", document | {"rows": rows}, "edges").rows if "handoff" in row["edge"]]
    assert [(row["who"], row["told"]) for row in found[1:]] == [("counted", "0 B"), ("observed", "missing")]


def test_the_observed_timeline_is_the_spans_in_picoseconds() -> None:
    rows = list(rows_in(spec_of(figure("run", run(), "timeline"))))
    spans = run()["spans"]
    assert [(row["start_ps"], row["picoseconds"]) for row in rows] == [
        (span["start_ns"] * 1000, (span["end_ns"] - span["start_ns"]) * 1000) for span in spans
    ]
    assert [row["lane"] for row in rows][2:4] == ["gpu:0", "gpu:0 -> gpu:1"]


def test_the_predicted_timeline_ends_with_the_phases_of_the_plan() -> None:
    planned = plan(fleet="two-gpu-staged")
    rows = figure("plan", planned, "timeline").rows
    time = planned["time"]
    ends = {name: round(time[name]["seconds"] * 1e12) for name in ("prefill", "handoff", "decode")}
    last = max(row["start_ps"] + row["picoseconds"] for row in rows)
    assert abs(last - sum(ends.values())) <= 10
    legs = [row for row in rows if row["phase"] == "handoff"]
    assert [row["lane"] for row in legs] == ["gpu:0 -> host", "host -> gpu:1"] * 2
    assert all(a["start_ps"] + a["picoseconds"] == b["start_ps"] for a, b in pairwise(legs))


def test_an_unpriced_phase_is_not_drawn() -> None:
    planned = plan()
    planned["time"]["handoff"]["seconds"] = None
    found = figure("plan", planned, "timeline")
    assert {row["phase"] for row in found.rows} == {"prefill"}
    assert "handoff is unpriced" in found.notes[0]


def test_latencies_links_and_workers_of_a_simulation() -> None:
    document = simulation()
    points = {(row["metric"], row["share"]): row["ms"] for row in figure("simulation", document, "latency").rows}
    assert points == {("TTFT", "P50"): 15, ("TTFT", "P90"): 30, ("TTFT", "P99"): 40, ("TTFT", "mean"): 20}
    assert [mark["ms"] for mark in figure("simulation", document, "latency").marks] == [30]
    links = list(rows_in(spec_of(figure("simulation", document, "links"))))
    assert [(row["from"], row["to"], row["rate"]) for row in links] == [(0, 1, 1), (1, 2, 2)]
    held = list(rows_in(spec_of(figure("simulation", document, "occupancy"))))
    assert [(row["edge"], row["from"], row["rate"]) for row in held] == [
        ("prefill gpu:0", 0, 25),
        ("prefill gpu:0", 1, 50),
    ]
    shares = {(row["worker"], row["what"]): row["percent"] for row in figure("simulation", document, "workers").rows}
    assert shares == {("prefill gpu:0", "busy"): 50, ("prefill gpu:0", "KV blocks at most"): 25,
                      ("decode gpu:1", "busy"): 50}  # fmt: skip


def test_a_distribution_ends_with_all_requests_at_the_longest_time() -> None:
    rows = [row for row in figure("records", records(), "ecdf").rows if row["metric"] == "TTFT"]
    assert rows[0] == {"metric": "TTFT", "ms": 0.006, "share": 0.5}
    assert rows[-1] == {"metric": "TTFT", "ms": 0.007, "share": 1.0}


def test_the_pareto_picture_counts_what_it_cannot_show() -> None:
    found = figure("sweep-result", sweep(), "pareto")
    assert [(row["case"], row["x"], row["y"], row["front"], row["slo"]) for row in found.rows] == [
        (1, 20.0, 2.0, True, "SLO kept"),
        (2, 200.0, 3.0, False, "SLO missed"),
    ]
    assert "1 cases have no such figures" in found.notes[1]


def test_the_matrix_shows_what_was_missed() -> None:
    rows = list(rows_in(spec_of(figure("proof", proof(), "matrix"))))
    marks = {(row["check"], row["number"]): row["mark"] for row in rows}
    assert marks == {("edges_match", 1): "F", ("edges_match", 2): "?", ("edges_match", 3): "-",
                     ("resident_match", 1): "p", ("resident_match", 2): "p", ("resident_match", 3): "-"}  # fmt: skip


class Page(HTMLParser):
    """Collects tags and every attribute of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.sources: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.sources += [value or "" for name, value in attrs if name in ("src", "href", "data", "action", "style")]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_is_one_file_that_fetches_nothing_and_runs_nothing() -> None:
    text = html_text(all_given(), [load_fleet("two-gpu-nvlink")])
    page = Page()
    page.feed(text)
    assert text.isascii()
    assert not {"script", "link", "iframe", "object", "embed", "form", "a", "base"} & set(page.tags)
    assert page.sources
    assert all(source.startswith("data:image/svg+xml;base64,") for source in page.sources)
    assert "default-src 'none'" in page.text or "default-src &#x27;none&#x27;" in text
    assert page.tags.count("img") >= 10


def test_a_fleet_called_script_is_words_in_every_picture_and_page() -> None:
    document = plan()
    document["inputs"]["fleet"]["name"] = HOSTILE
    document["placement"]["prefill"] = document["memory"][0]["device"] = HOSTILE
    for row in document["waybill"]:
        row["src"] = row["src"].replace("gpu:0", HOSTILE)
        for leg in row["legs"]:
            leg["src"] = leg["src"].replace("gpu:0", HOSTILE)
    given = Given(kind="plan", document=document, source=HOSTILE)
    svg = svg_of(joined_spec([given]))
    drawn = topology_of(document, [])
    assert drawn is not None
    for text in (svg, drawn[0], html_text([given])):
        assert "<script" not in text
        assert not re.search(r"""(?:href|src)=["'](?:https?:)?//""", text)
    page = Page()
    page.feed(html_text([given]))
    assert "<script>alert(1)</script>" in page.text


def test_the_topology_without_its_fleet_is_what_the_plan_moves_over() -> None:
    scene = own_scene(plan(fleet="two-gpu-staged"))
    assert scene is not None
    carried = {(line.src, line.dst): line.kv for line in scene.lines if line.kv}
    handoff = plan(fleet="two-gpu-staged")["handoff"]
    words = f"KV {handoff['bytes']:,} B in {handoff['copies']:,} copies"
    assert carried == {("gpu:0", "host"): words, ("host", "gpu:1"): words}


def test_every_kind_of_document_can_be_drawn_to_png() -> None:
    png = png_of(joined_spec(all_given()), scale=0.5)
    assert png.startswith(b"\x89PNG\r\n")


@pytest.mark.parametrize("output", ["md", "json", "junit", "github"])
def test_reports_of_words_load_no_drawing_library(output: str) -> None:
    code = (
        "import sys; from scenarios.cli.__main__ import main\n"
        f"sys.exit(main(['admit', 'two-gpu', '-q', '-o', {output!r}])"
        " or sum(name in sys.modules for name in ('altair', 'vl_convert', 'numpy', 'numba')))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_catalog_fleets_are_found_for_plans_that_name_them() -> None:
    assert "two-gpu-nvlink" in catalog_names()
    text = report_text("html", [Given(kind="plan", document=plan(), source="p")], fleets=[load_fleet("two-gpu-nvlink")])
    assert "The fleet of the plan" in text
