"""`fleet show` as text: tree, matrix and links, in full for small fleets and once for what is alike in large ones."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fleet.load import load_fleet
from fleet.render import fleet_document
from planner.machine import NoWay, UnknownWay, machine_graph
from scenarios.fleet_matrix import ASKED_BYTES, shown_part
from scenarios.fleet_text import fleet_text
from tests.command_line import Ask, asker, fleet, without
from tests.scenarios.test_pictures import HOSTILE, THOUSANDS

MIG = """schema: kvwaybill/fleet/1
name: sliced
devices:
  - {id: gpu:0, sku: h100-sxm-80}
  - {id: slice-a, parent: gpu:0, profile: 1g.10gb, kind: gpu, memories: [{name: hbm, capacity: 9 GiB}]}
nics: [{id: nic:0}]
links:
  - {from: host, to: gpu:0, kind: pcie, bandwidth: 63 GB/s, bidirectional: true}
  - {from: gpu:0, to: nic:0, kind: pcie, bidirectional: true}
"""


@pytest.fixture
def ask(capfd: pytest.CaptureFixture[str]) -> Ask:
    return asker(capfd)


def text_of(name: str, text: str | None = None, **look: Any) -> str:
    loaded = load_fleet(name, text=text)
    document = fleet_document(loaded) | {"limits": []}
    return fleet_text(document, shown_part(loaded), **look)


def block(text: str, title: str) -> list[str]:
    """The lines of one block, its title first."""
    [found] = [part.splitlines() for part in text.split("\n\n") if part.startswith(title)]
    return found


def matrix(text: str) -> dict[tuple[str, str], str]:
    """The cells of the matrix by row and column."""
    head, *rows = [line for line in block(text, "Matrix") if not line.startswith("  from the row")]
    columns = head.split()[1:]
    cells = {}
    for line in rows[: len(rows)]:
        name, *values = line.split()
        if len(values) == len(columns):
            cells |= {(name, column): value for column, value in zip(columns, values, strict=True)}
    return cells


@pytest.mark.parametrize("name", ["two-gpu-staged", "hgx-h100", "mi300x-x8", "pcie-a10", "gpu-and-cpu"])
def test_every_cell_of_the_matrix_is_the_way_that_a_plan_would_take(name: str) -> None:
    loaded = load_fleet(name)
    graph = machine_graph(loaded)
    cells = matrix(text_of(name))
    names = [device.id for device in loaded.devices] + [host.id for host in loaded.hosts]
    for a in names:
        for b in names:
            cell, way = cells[a, b], graph.way(a, b, ASKED_BYTES, 1)
            if a == b:
                assert cell == "X"
            elif isinstance(way, NoWay):
                assert cell == "-"
            elif isinstance(way, UnknownWay):
                assert cell.endswith("?")
            else:
                assert (cell == "STG") == (len(way.hops) > 1)


def test_nvlinks_are_counted_also_through_a_switch_and_a_missing_direction_shows() -> None:
    assert matrix(text_of("hgx-h100"))["gpu:0", "gpu:7"] == "NV18"
    assert matrix(text_of("two-gpu-staged"))["gpu:0", "gpu:1"] == "STG"
    one_way = without(fleet(), ("gpu:1", "gpu:0"), ("host", "gpu:0"))
    cells = matrix(text_of("x.yaml", json.dumps(one_way)))
    assert (cells["gpu:0", "gpu:1"], cells["gpu:1", "gpu:0"], cells["host", "gpu:0"]) == ("PCI", "-", "-")


def test_only_marks_that_occur_are_explained() -> None:
    text = text_of("hgx-h100")
    assert "over # NVLinks" in text
    assert "Infinity Fabric" not in text
    assert "staged" not in text


def test_the_tree_puts_slices_below_their_card_and_network_cards_below_their_host() -> None:
    lines = block(text_of("x.yaml", MIG), "Tree")
    assert [line.split()[:2] for line in lines[1:]] == [
        ["host", "host"], ["+-", "gpu:0"], ["+-", "slice-a"], ["+-", "nic:0"],
    ]  # fmt: skip
    assert lines[3].startswith("      +- slice-a  1g.10gb")
    assert matrix(text_of("x.yaml", MIG))["gpu:0", "nic:0"] == "PCI"


def test_links_of_a_small_fleet_stand_singly_and_those_of_a_larger_one_by_their_figures() -> None:
    small = block(text_of("two-gpu-nvlink"), "Links")
    assert len(small) == 1 + 6
    large = block(text_of("pcie-l40s"), "Links")
    assert large[1].startswith("  gpu:0 -> gpu:1 and 55 more")
    assert sum(int(line.partition(" and ")[2].split()[0]) + 1 for line in large[1:4]) == 72


def test_thousands_are_told_once_with_their_number() -> None:
    text = text_of("t.yaml", THOUSANDS)
    assert len(text.splitlines()) < 80
    assert "+- node0/gpu:0  h100-sxm-80, hbm 79.65 GiB  (150 alike)" in text
    assert [line.split()[-1] for line in block(text, "Devices")[1:]] == ["150"] * 8


@pytest.mark.parametrize("width", [40, 60, 100])
def test_a_narrow_terminal_gets_the_matrix_in_blocks_of_columns(width: int) -> None:
    text = text_of("hgx-h100", width=width)
    assert all(len(line) <= width for line in text.splitlines())
    heads = [line.split()[1:] for line in text.splitlines() if line.startswith("Matrix")]
    assert [name for head in heads for name in head] == [*(f"gpu:{i}" for i in range(8)), "host"]


def test_piped_text_has_no_colour(ask: Ask) -> None:
    answer = ask("fleet", "show", "hgx-h100")
    assert answer.code == 0
    assert "\x1b" not in answer.out
    assert "\x1b[1mTree" in text_of("hgx-h100", color=True)


@pytest.mark.parametrize("label", HOSTILE)
def test_hostile_labels_cannot_steer_a_terminal(label: str) -> None:
    described = fleet() | {"label": label.replace("\x07", "").replace("\x1b", "")}
    described["hosts"][0]["label"] = described["label"]
    text = text_of("x.yaml", json.dumps(described))
    assert all(line.isprintable() for line in text.splitlines())


def test_a_topology_text_is_shown_with_its_card(ask: Ask, tmp_path) -> None:
    topology = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV4\t0-9\nGPU1\tNV4\t X \t0-9\n"
    (tmp_path / "topo.txt").write_text(topology)
    answer = ask("fleet", "show", tmp_path / "topo.txt", "--sku", "a100-sxm-80")
    assert answer.code == 0
    assert matrix(answer.out)["gpu:0", "gpu:1"] == "NV4"
    assert "a100-sxm-80" in answer.out
