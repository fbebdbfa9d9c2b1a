"""Pictures of fleets: every link is drawn, none behind another and none through a box, whatever the fleet."""

from __future__ import annotations

import json
import random
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.catalog import catalog_names
from fleet.errors import DescriptionError
from fleet.load import load_fleet
from fleet.machine import Fleet, Host, Link, Nic, Quantity, Switch
from scenarios.pictures import draw, mermaid_text, picture_document, scene_of, svg_text
from scenarios.pictures.check import faults
from scenarios.pictures.collapse import MAX_BOXES
from scenarios.pictures.places import Placed, Rect
from tests.command_line import Ask, asker, fleet, write_json
from tests.planner.fleets import device, known

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"
DRAWN = Path(__file__).resolve().parents[2] / "docs" / "pictures"
SVG = "{http://www.w3.org/2000/svg}"
GB = 10**9


@pytest.fixture
def ask(capfd: pytest.CaptureFixture[str]) -> Ask:
    return asker(capfd)


def stood_for(placed: Placed) -> int:
    """One-way links that the lines stand for."""
    return sum(line.links * (2 if line.both else 1) for line in placed.scene.lines)


def checked(what: Fleet) -> Placed:
    """The picture, with its laws."""
    placed = draw(scene_of(what))
    assert faults(placed) == []
    assert stood_for(placed) == len(what.links)
    assert sum(box.count for box in placed.scene.boxes) == len([*what.hosts, *what.devices, *what.switches, *what.nics])
    ET.fromstring(svg_text(placed))
    return placed


@st.composite
def fleets(draw_: st.DrawFn) -> Fleet:
    """Hosts, devices, switches and NICs, in nodes or not, linked at random."""
    prefixes = draw_(st.sampled_from([("",), ("a/", "b/"), ("", "a/"), ("p/a/", "p/b/", "q/a/")]))
    hosts, devices, switches, nics = [], [], [], []
    for prefix in prefixes:
        hosts += [Host(id=f"{prefix}host{i}") for i in range(draw_(st.integers(1, 2)))]
        for i in range(draw_(st.integers(0, 5))):
            made = device(f"{prefix}gpu:{i}", topology_id=3000 + len(devices))
            devices.append(replace(made, host=hosts[-1].id))
        nics += [Nic(id=f"{prefix}nic:{i}", host=hosts[-1].id) for i in range(draw_(st.integers(0, 2)))]
        for i in range(draw_(st.integers(0, 2))):
            held = draw_(st.sampled_from([None, hosts[-1].id]))
            switches.append(
                Switch(id=f"{prefix}sw{i}", kind=draw_(st.sampled_from(["nvlink", "pcie", "net"])), host=held)
            )
    names = [row.id for row in (*hosts, *devices, *switches, *nics)]
    links = []
    for _ in range(draw_(st.integers(0, 40)) if len(names) > 1 else 0):
        src, dst = draw_(st.sampled_from(list(pairwise(names)))) if draw_(st.booleans()) else (names[0], names[-1])
        if draw_(st.booleans()):
            src, dst = dst, src
        rate = draw_(st.sampled_from([Quantity(), known(63 * GB), known(450 * GB)]))
        links.append(Link(src=src, dst=dst, kind=draw_(st.sampled_from(["pcie", "nvlink", "net"])), bandwidth=rate))
    return Fleet(
        name="drawn", hosts=tuple(hosts), devices=tuple(devices), switches=tuple(switches), nics=tuple(nics),
        links=tuple(links), digest="0" * 64,
    )  # fmt: skip


@given(what=fleets())
@settings(max_examples=80, deadline=None)
def test_every_link_is_drawn_and_none_lies_upon_another_or_goes_through_a_box(what: Fleet):
    checked(what)


@pytest.mark.parametrize("name", catalog_names())
def test_shipped_fleets_are_drawn_in_full_with_a_label_at_every_line(name: str):
    placed = checked(load_fleet(name))
    assert all(label is not None for label in placed.labels)


@pytest.mark.shared
def test_every_topology_that_describes_a_machine_is_drawn():
    if not SHARED.is_dir():
        pytest.skip("the shared reference data is not beside the project")
    drawn = 0
    for path in sorted([*(SHARED / "topology").glob("*.*"), *(SHARED / "vx_fleet").glob("*.vx")]):
        if path.suffix not in (".txt", ".xml", ".vx"):
            continue
        try:
            loaded = load_fleet(str(path))
        except DescriptionError:
            continue  # measurements, host files: no machine to draw
        checked(loaded)
        drawn += 1
    assert drawn >= 20


def test_the_check_sees_a_line_through_a_box_a_shared_path_and_boxes_upon_each_other():
    placed = draw(scene_of(load_fleet("two-gpu-nvlink")))
    assert faults(placed) == []
    first, second = placed.paths[1], placed.paths[2]
    assert any("lies upon" in told for told in faults(replace(placed, paths=(placed.paths[0], first, first))))
    low = placed.rects["gpu:0"]
    onto = {**placed.rects, "gpu:1": low}
    assert any(
        "box gpu:0 lies upon gpu:1" in told or "box gpu:1" in told for told in faults(replace(placed, rects=onto))
    )
    middle = second[0][0]
    across = {**placed.rects, "gpu:0": Rect(middle[0] - 40, middle[1] - 9, middle[0] + 40, middle[1] + 30)}
    assert any("goes through box gpu:0" in told for told in faults(replace(placed, rects=across)))


THOUSANDS = """schema: kvwaybill/fleet/1
name: thousands
templates:
  box:
    devices: [{id: gpu, count: 8, sku: h100-sxm-80}]
    switches: [{id: nvswitch, kind: nvlink, host: host}]
    links:
      - {from: "gpu:*", to: nvswitch, kind: nvlink, bandwidth: 450 GB/s, peer_access: direct, bidirectional: true}
      - {from: host, to: "gpu:*", kind: pcie, bandwidth: 63 GB/s, bidirectional: true}
nodes: [{id: node, template: box, count: 150}]
switches: [{id: leaf, kind: net, tier: 1, count: 3}]
links: [{from: "node*/host", to: "leaf:*", each: all, kind: net, bandwidth: 400 Gb/s, bidirectional: true}]
"""


def test_a_fleet_of_thousands_is_drawn_once_for_what_is_alike_and_says_so():
    placed = checked(load_fleet("t.yaml", text=THOUSANDS))
    assert placed.scene.collapsed
    assert len(placed.scene.boxes) <= MAX_BOXES
    text = svg_text(placed)
    assert "1,200 devices" in text
    assert "\u00d7 150 alike, to node149/gpu:0" in text
    assert "node0, one of 150 alike" in text
    assert "150 alike" in mermaid_text(placed.scene).replace("#215;", "x")


def test_a_device_that_differs_is_not_drawn_as_one_of_the_others():
    other = THOUSANDS.replace("count: 150}]", "count: 150}, {id: odd, template: box}]")
    placed = checked(load_fleet("t.yaml", text=other.replace("links: [{from", "links: [{from: odd/gpu:0, to: odd/gpu:1,"
                     " kind: pcie, bandwidth: 9 GB/s}, {from")))  # fmt: skip
    names = {box.name for box in placed.scene.boxes}
    assert {"node0/gpu:0", "odd/gpu:0", "odd/gpu:1"} <= names


def test_a_large_mesh_without_nodes_is_drawn_as_one_device_linked_with_its_like():
    mesh = """schema: kvwaybill/fleet/1
name: mesh
devices: [{id: gpu, count: 64, sku: l40s}]
links:
  - {from: "gpu:*", to: "gpu:*", each: all, kind: pcie, bandwidth: 32 GB/s}
  - {from: host, to: "gpu:*", kind: pcie, bandwidth: 32 GB/s, bidirectional: true}
"""
    placed = checked(load_fleet("t.yaml", text=mesh))
    assert len(placed.scene.boxes) == 2
    assert any(line.src == line.dst and line.links == 64 * 63 for line in placed.scene.lines)


def test_more_different_things_than_a_page_holds_are_drawn_by_kind_and_not_called_alike():
    described = fleet([f"{64 + number} MiB" for number in range(90)], peer=None)
    for number, row in enumerate(described["links"]):
        row["bandwidth"] = f"{1 + number} GB/s"
    placed = checked(load_fleet("t.yaml", text=json.dumps(described)))
    assert len(placed.scene.boxes) == 2
    assert len(placed.scene.lines) <= 2
    text = svg_text(placed)
    assert "90 of this kind, which differ" in text
    assert "several rates" in text
    assert "alike" not in text


def test_a_permuted_file_gives_the_same_picture():
    described = fleet(["64 MiB", "32 MiB", "16 MiB"])
    pictures = set()
    for seed in range(4):
        mixed = described | {
            key: random.Random(seed).sample(described[key], len(described[key])) for key in ("devices", "links")
        }
        pictures.add(svg_text(draw(scene_of(load_fleet("x.yaml", text=json.dumps(mixed))))))
    assert len(pictures) == 1


HOSTILE = (
    "</text><script>alert(1)</script>", "\"]; click n0 href \"x\"; n9[\"", "a & b < c > d 'e' \"f\"", "%%{init: {}}%%",
    "\u202eabc\u2066", "x" * 300, "\x07bell\x1b[31m", "end", "-->|x| n1", "<!-- --> ]]> &#x0; &lol;",
    "\u4e2d\u6587\u5b57\u7b26",
)  # fmt: skip


@pytest.mark.parametrize("label", HOSTILE)
def test_hostile_labels_stay_text_in_every_format(label: str):
    base = load_fleet("two-gpu-nvlink")
    named = replace(
        base, label=label, hosts=tuple(replace(h, label=label) for h in base.hosts),
        devices=tuple(replace(d, sku=None, label=label) for d in base.devices),
    )  # fmt: skip
    placed = draw(scene_of(named))
    assert faults(placed) == []
    root = ET.fromstring(svg_text(placed))
    assert {element.tag.removeprefix(SVG) for element in root.iter()} <= {
        "svg",
        "title",
        "style",
        "rect",
        "text",
        "g",
        "path",
    }
    assert not any(name in ("href", "onload", "onclick") for element in root.iter() for name in element.attrib)
    assert_mermaid(mermaid_text(placed.scene))
    json.dumps(picture_document(placed), allow_nan=False)


WORDS = r"[A-Za-z0-9 .,:/_\-+()?#;]|<br/>"
MERMAID = re.compile(
    rf"""---|title:\ "[A-Za-z0-9 .,:/_\-+()?]*"|flowchart\ TB|\ \ %%\ [^{{}}%\n]*
    |\ \ subgraph\ g\d+\["(?:{WORDS})*"\]|\ \ end
    |\ +n\d+(?:\["(?:{WORDS})*"\]|\("(?:{WORDS})*"\)|\{{\{{"(?:{WORDS})*"\}}\}}|\[/"(?:{WORDS})*"/\])
    |\ \ n\d+\ (?:<-->|<-\.->|-->|-\.->|==>)\|"(?:{WORDS})*"\|\ n\d+
    |\ \ linkStyle\ [\d,]+\ stroke:\#d1006c,stroke-width:4px|\ \ classDef\ \w+\ [\w:\#,]+|\ \ class\ n\d+\ \w+""",
    re.VERBOSE,
)
"""Every line that we write; the syntax of flowcharts at large is Mermaid's own."""


def assert_mermaid(text: str) -> None:
    for line in text.splitlines():
        assert MERMAID.fullmatch(line), line


@pytest.mark.parametrize("name", ["hgx-h100", "gb200-nvl72", "two-gpu-staged", "two-gpu-unknown", "mi300x-x8"])
def test_mermaid_has_a_node_for_each_box_and_an_arrow_for_each_line(name: str):
    scene = scene_of(load_fleet(name))
    text = mermaid_text(scene)
    assert_mermaid(text)
    assert len(re.findall(r"^ +n\d+[\[({]", text, re.M)) == len(scene.boxes)
    assert len(re.findall(r"^  n\d+ \S+\|", text, re.M)) == len(scene.lines)


def test_the_picture_is_self_contained_and_readable_dark_and_light():
    text = svg_text(draw(scene_of(load_fleet("hgx-h100"))))
    assert "prefers-color-scheme:dark" in text
    assert re.findall(r"https?://[^\"']*", text) == ["http://www.w3.org/2000/svg"]
    assert "url(" not in text
    assert "@import" not in text
    assert "nvlink \u00d718 450 GB/s" in text


def test_a_link_without_a_rate_is_dashed_and_the_legend_says_why(tmp_path: Path):
    described = fleet()
    described["links"][0].pop("bandwidth")
    placed = checked(load_fleet("x.yaml", text=json.dumps(described)))
    assert [line.priced for line in placed.scene.lines].count(False) == 1
    assert svg_text(placed).count('unpriced" d="') == 2, "the line and its sample"
    assert any("unpriced" in note for note in placed.scene.notes)


def planned(ask: Ask, folder: Path, name: str, *more: str) -> Path:
    """A plan of a shipped fleet, whatever its verdict."""
    answer = ask("admit", "--fleet", name, "--prompt-tokens", "100", "--steps", "120", "-o", "json", *more)
    path = folder / f"{name}.json"
    path.write_text(answer.out)
    return path


def marked(ask: Ask, name: str, plan: Path) -> list[dict]:
    document = ask("fleet", "show", name, "--plan", plan, "-o", "json").document
    return [line for line in document["picture"]["lines"] if line["kv"]]


def test_the_handoff_is_marked_with_its_bytes_on_each_leg_and_segment(ask: Ask, tmp_path: Path):
    [direct] = marked(ask, "two-gpu-nvlink", planned(ask, tmp_path, "two-gpu-nvlink"))
    assert (direct["src"], direct["dst"], direct["kv"]) == ("gpu:0", "gpu:1", "KV 128,000 B in 10 copies")
    assert not direct["both_ways"]
    staged = marked(ask, "two-gpu-staged", planned(ask, tmp_path, "two-gpu-staged"))
    assert [(line["src"], line["dst"]) for line in staged] == [("gpu:0", "host"), ("host", "gpu:1")]
    switched = marked(ask, "hgx-h100", planned(ask, tmp_path, "hgx-h100", "--prefill", "gpu:2", "--decode", "gpu:5"))
    assert {(line["src"], line["dst"]) for line in switched} == {("gpu:2", "nvswitch"), ("nvswitch", "gpu:5")}
    assert all(line["label"] and line["label"][0].startswith("KV") for line in (direct, *staged, *switched))


def test_a_handoff_whose_way_is_unknown_is_drawn_over_no_link(ask: Ask, tmp_path: Path):
    [line] = marked(ask, "pcie-l40s", planned(ask, tmp_path, "pcie-l40s"))
    assert (line["links"], line["priced"]) == (0, False)
    assert "way unknown" in line["kv"]


def test_a_handoff_inside_one_device_is_an_arc_at_the_device_with_its_bytes(ask: Ask, tmp_path: Path):
    [line] = marked(ask, "one-gpu", planned(ask, tmp_path, "one-gpu"))
    assert (line["src"], line["dst"], line["links"]) == ("gpu:0", "gpu:0", 0)
    assert line["label"] == ["KV 128,000 B in 10 copies, inside the device"]


def test_with_attention_on_the_host_the_legs_up_across_and_down_are_marked(ask: Ask, tmp_path: Path):
    lines = marked(ask, "two-gpu-nvlink", planned(ask, tmp_path, "two-gpu-nvlink", "--attention", "host"))
    assert {(line["src"], line["dst"]) for line in lines} == {("host", "gpu:0"), ("gpu:0", "gpu:1"), ("gpu:1", "host")}


def test_of_parallel_links_the_one_that_the_plan_takes_is_marked(ask: Ask, tmp_path: Path):
    described = fleet()
    described["links"].append(described["links"][-2] | {"kind": "nvlink", "bandwidth": "400 GB/s", "latency": "50 us"})
    assert (described["links"][-1]["from"], described["links"][-1]["to"]) == ("gpu:0", "gpu:1")
    path = write_json(tmp_path / "made.yaml", described)
    for prompt, kind in (("10", "pcie"), ("4000", "nvlink")):
        plan = tmp_path / f"{prompt}.json"
        words = ("--positions", "8000", "--steps", "4010") if prompt == "4000" else ("--steps", "20")
        asked = ("--prompt-tokens", prompt, *words, "--model", llama(tmp_path))
        plan.write_text(ask("admit", "--fleet", path, *asked, "-o", "json").out)
        [line] = marked(ask, str(path), plan)
        assert line["kind"] == kind


def llama(folder: Path) -> Path:
    """A model large enough that the size of its handoff decides between links."""
    path = folder / "config.json"
    shape = {"hidden_size": 4096, "num_hidden_layers": 2, "num_attention_heads": 32, "num_key_value_heads": 32}
    more = {"intermediate_size": 512, "vocab_size": 512, "max_position_embeddings": 8192, "torch_dtype": "bfloat16"}
    write_json(path, {"model_type": "llama", "architectures": ["LlamaForCausalLM"]} | shape | more)
    return path


def test_placed_devices_of_a_large_fleet_are_drawn_apart(ask: Ask, tmp_path: Path):
    path = tmp_path / "t.yaml"
    path.write_text(THOUSANDS)
    plan = planned(ask, tmp_path, str(path), "--prefill", "node7/gpu:1", "--decode", "node7/gpu:2")
    document = ask("fleet", "show", path, "--plan", plan, "-o", "json").document["picture"]
    roles = {box["id"]: (box["role"], box["count"]) for box in document["boxes"] if box["role"]}
    assert roles == {"node7/gpu:1": ("prefill", 1), "node7/gpu:2": ("decode", 1)}
    assert len([line for line in document["lines"] if line["kv"]]) == 2


def test_a_plan_of_another_fleet_is_refused_with_both_names(ask: Ask, tmp_path: Path):
    plan = planned(ask, tmp_path, "two-gpu-nvlink")
    for output in ("text", "svg", "mermaid", "json"):
        answer = ask("fleet", "show", "two-gpu-staged", "--plan", plan, "-o", output)
        assert (answer.code, answer.out) == (2, "")
        assert "two-gpu-nvlink" in answer.err
        assert "two-gpu-staged" in answer.err
    assert ask("fleet", "show", "two-gpu-nvlink", "--plan", "two-gpu").code == 2
    assert ask("fleet", "show", "-", "--plan", "-").code == 2


def test_the_json_with_its_picture_reads_back_as_the_same_fleet(ask: Ask, tmp_path: Path):
    answer = ask("fleet", "show", "hgx-h100", "-o", "json")
    (tmp_path / "shown.json").write_text(answer.out)
    assert load_fleet(str(tmp_path / "shown.json")).digest == load_fleet("hgx-h100").digest
    picture = answer.document["picture"]
    assert len(picture["boxes"]) == 10
    assert all(len(line["path"]) % 3 == 1 for line in picture["lines"])


def test_out_writes_the_picture_whole_or_not_at_all(ask: Ask, tmp_path: Path):
    target = tmp_path / "fleet.svg"
    answer = ask("fleet", "show", "two-gpu-nvlink", "-o", "svg", "--out", target)
    assert (answer.code, answer.out) == (0, "")
    assert target.read_text() == svg_text(draw(scene_of(load_fleet("two-gpu-nvlink"))))
    write_json(tmp_path / "bad.yaml", {"schema": "kvwaybill/fleet/1", "name": "x", "devices": 3})
    assert ask("fleet", "show", tmp_path / "bad.yaml", "-o", "svg", "--out", tmp_path / "no.svg").code == 2
    assert not (tmp_path / "no.svg").exists()
    assert ask("fleet", "show", "two-gpu-nvlink", "-o", "svg", "--out", tmp_path / "none" / "x.svg").code == 2


DRAWINGS = {
    "two-gpu-staged": ("two-gpu-staged", "--prompt-tokens", "100", "--steps", "120"),
    "hgx-h100": ("hgx-h100", "--prompt-tokens", "100", "--steps", "120", "--prefill", "gpu:2", "--decode", "gpu:5"),
    "gb200-nvl72": None,
}


@pytest.mark.parametrize("name", DRAWINGS)
def test_the_drawings_of_the_docs_are_what_the_command_draws(name: str, ask: Ask, tmp_path: Path):
    more: tuple[str, ...] = ()
    asked = DRAWINGS[name]
    if asked is not None:
        plan = tmp_path / "plan.json"
        plan.write_text(ask("admit", "--fleet", *asked, "-o", "json").out)
        more = ("--plan", str(plan))
    assert ask("fleet", "show", name, "-o", "svg", *more).out == (DRAWN / f"{name}.svg").read_text(encoding="utf-8")


MATRIX = "\tGPU0\tGPU1\nGPU0\tX\tNV4\nGPU1\tNV4\tX\n"
MACHINE = """Memory HBM { capacity: 80 GiB, scope: device }
Memory PEER_HBM { capacity: 80 GiB, scope: device }
Topology Device {
  memory: Memory::HBM
  transfer Memory::CPU_DRAM -> Memory::HBM : 63 GB/s
  transfer Memory::HBM -> Memory::PEER_HBM : 450 GB/s
}
"""


@pytest.mark.parametrize(
    ("name", "text", "flags"),
    [("topo.txt", MATRIX, ["--sku", "rtx-3090"]), ("pair.vx", MACHINE, ["--assume-host-return"])],
)
def test_a_plan_brings_the_card_and_the_links_that_it_was_made_with(
    name: str, text: str, flags: list[str], ask: Ask, tmp_path: Path
):
    """Such a plan was once refused as one of another fleet; for assumed links no flag of show could help."""
    (tmp_path / name).write_text(text)
    plan = tmp_path / "plan.json"
    asked = ["--fleet", tmp_path / name, "--prompt-tokens", "5", "--steps", "9", *flags]
    assert ask("admit", *asked, "--plan-out", plan).code == 0
    for output in ("text", "svg", "mermaid", "json"):
        shown = ask("fleet", "show", tmp_path / name, "--plan", plan, "-o", output)
        assert shown.code == 0, shown.err
        assert "KV" in shown.out
    other = ask("fleet", "show", tmp_path / name, "--plan", plan, "--sku", "l40s")
    if "--sku" in flags:
        assert other.code == 2
        assert "was made for the fleet nvidia-smi with --sku rtx-3090, which is not this one" in other.err
