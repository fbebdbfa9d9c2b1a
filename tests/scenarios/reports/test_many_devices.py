"""Pictures of many devices and of long names: no two rows of one label, nothing cut by the axis, all is counted."""

from __future__ import annotations

import re
from typing import Any

import pytest

from fleet.load import load_fleet
from scenarios.pictures import draw, scene_of, svg_text
from scenarios.reports.figures import figures_of
from scenarios.reports.shape import distinct, several
from scenarios.reports.specs import _CONFIG, spec_of
from tests.scenarios.made import plan
from tests.scenarios.reports.report_cases import simulation

Document = dict[str, Any]
LONG = "row-7/rack-with-a-long-name-{}/sled-number-{}"
WIDEST = 7
"""Pixels of a character of a label at most."""


def figure(kind: str, document: Document, name: str) -> Any:
    (found,) = [each for each in figures_of(kind, document) if each.name == name]
    return found


def spread(count: int) -> Document:
    """A plan whose rows go over `count` pairs of devices with long names, each pair with bytes and times of its own."""
    made = plan()
    row = next(row for row in made["waybill"] if row["phase"] == "handoff")
    rows = []
    for at in range(count):
        src, dst = (f"{LONG.format(at // 8, at)}/gpu:{end}" for end in (0, 1))
        legs = [{"src": src, "dst": dst, "kind": "p2p", "link": "nvlink", "bytes": 1000 + at % 3, "copies": 1}]
        rows.append(row | {"src": src, "dst": dst, "bytes": 1000 + at % 3, "legs": legs})
    return made | {"waybill": rows}


def test_labels_that_would_be_cut_to_the_same_words_are_told_apart() -> None:
    names = {at: f"{'a' * 40}{at}{'b' * 40}" for at in range(30)}
    labels = distinct(names, 20)
    assert len(set(labels.values())) == 30
    assert all(len(label) <= 20 for label in labels.values())
    assert distinct({1: "gpu:0", 2: "gpu:0"}, 20) == {1: "gpu:0", 2: "gpu:0 #2"}
    assert several(["gpu:0", "gpu:1"]) == "gpu:0, gpu:1"
    assert several([f"gpu:{n}" for n in range(32)]) == "gpu:0 and 31 more"


@pytest.mark.parametrize("count", [1, 2, 8, 12, 64, 1000])
def test_every_edge_of_a_plan_has_a_row_of_its_own_or_is_counted(count: int) -> None:
    document = spread(count)
    found = figure("plan", document, "edges")
    labels = [row["edge"] for row in found.rows]
    assert len(set(labels)) == len(labels), "two edges in one band would be drawn over one another"
    drawn = sum(
        1 + int(more[1].replace(",", "")) if (more := re.search(r"and ([\d,]+) alike", label)) else 1
        for label in labels
    )
    left = sum(int(note.split()[0].replace(",", "")) for note in found.notes if "more edges" in note)
    assert drawn + left == count
    assert sorted({row["bytes"] for row in found.rows}) == sorted({1000 + at % 3 for at in range(count)})
    limit = _CONFIG["axis"]["labelLimit"]
    assert all(len(label) * WIDEST <= limit for label in labels), "the axis would cut it"
    assert spec_of(found)["height"] <= 24 * 25


def test_lanes_of_a_timeline_that_do_alike_are_one_and_the_others_are_counted() -> None:
    made = plan()
    spans = [
        {"phase": "handoff", "src": f"n{at}/gpu:0", "dst": f"n{at}/gpu:1", "tensor": "k", "start_ns": 10 * (at % 40),
         "end_ns": 10 * (at % 40) + 5 + at % 40}
        for at in range(200)
    ]  # fmt: skip
    found = figure(
        "run", {"spans": spans, "tier": "on-device", "comparison": None, "inputs": made["inputs"]}, "timeline"
    )
    lanes = list(dict.fromkeys(row["lane"] for row in found.rows))
    assert len(lanes) == 32
    assert all(lane.endswith("and 4 alike") for lane in lanes)
    assert "40 more lanes that are busy no longer" in found.notes
    assert max(row["picoseconds"] for row in found.rows) == 44_000
    few = spans[:16]
    found = figure("run", {"spans": few, "tier": "on-device", "comparison": None, "inputs": made["inputs"]}, "timeline")
    assert len({row["lane"] for row in found.rows}) == 16


def test_workers_of_many_devices_are_named_by_the_first_and_no_two_alike() -> None:
    document = simulation()
    worker = document["workers"][0]
    many = [",".join(f"{LONG.format(at, n)}/gpu:0" for n in range(32)) for at in range(6)]
    document["workers"] = [worker | {"device": device} for device in (*many, *many)]
    found = figure("simulation", document, "workers")
    busy = [row["worker"] for row in found.rows if row["what"] == "busy"]
    assert len(set(busy)) == 12
    assert all(len(name) <= 60 for name in busy)
    assert "and 31 more" in busy[0]


def test_a_plan_of_many_ranks_is_drawn_on_a_page() -> None:
    fleet = load_fleet("gb200-nvl72")
    prefill, decode = (
        [f"tray{tray}/gpu:{gpu}" for tray in trays for gpu in range(4)] for trays in (range(8), range(8, 16))
    )
    legs = [
        {"src": src, "dst": dst, "kind": "p2p", "link": "nvlink", "bytes": 1000, "copies": 2,
         "segments": [{"src": src, "dst": "nvswitch"}, {"src": "nvswitch", "dst": dst}]}
        for src, dst in zip(prefill, decode, strict=True)
    ]  # fmt: skip
    document = {
        "verdict": "admitted", "inputs": {"fleet": {"digest": fleet.digest, "name": fleet.name}},
        "placement": {"prefill": ",".join(prefill), "decode": ",".join(decode)},
        "handoff": {"bytes": 32_000, "copies": 64, "seconds": None},
        "waybill": [{"phase": "handoff", "legs": [leg]} for leg in legs],
    }  # fmt: skip
    scene = scene_of(fleet, document, "plan")
    assert sum(box.count for box in scene.boxes if box.role == "prefill") == 32
    assert sum(box.count for box in scene.boxes if box.role == "decode") == 32
    carrying = [line for line in scene.lines if line.kv]
    assert sum(line.links for line in carrying) == 64
    assert {line.kv for line in carrying} == {"KV 1,000 B in 2 copies each"}
    assert "12 more legs" in " ".join(scene.notes)
    width = float(re.search(r'viewBox="0 0 ([0-9.]+)', svg_text(draw(scene)))[1])  # type: ignore[index]
    assert width < 3200
