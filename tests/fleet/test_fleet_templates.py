# ruff: noqa: E501 - tables of one case a line
"""Templates, nodes, patterns, switches, slices, shared memories: what a fleet file writes once and means often."""

from __future__ import annotations

import itertools
import json
import tracemalloc
from dataclasses import replace

import pytest

from fleet.dump import fleet_yaml
from fleet.errors import DescriptionError
from fleet.laws import distinct_memories, total_capacity
from fleet.load import load_fleet
from fleet.machine import Fleet
from fleet.render import fleet_document
from tests.work import counted

GIB = 2**30
HEAD = "schema: kvwaybill/fleet/1\nname: t\n"
CARD = "skus:\n  card: {kind: gpu, memories: [{name: hbm, capacity: 80 GiB}], runtime: 1 GiB}\n"
BOX = """templates:
  box:
    devices: [{id: gpu, count: 4, sku: card}]
    switches: [{id: nvswitch, kind: nvlink}]
    nics: [{id: nic, count: 4}]
    links:
      - {from: "gpu:*", to: nvswitch, kind: nvlink, bandwidth: 450 GB/s, peer_access: direct, bidirectional: true}
      - {from: host, to: "gpu:*", kind: pcie, bandwidth: 63 GB/s, bidirectional: true}
      - {from: "gpu:*", to: "nic:*", each: pair, kind: pcie, bandwidth: 63 GB/s, bidirectional: true}
"""
THOUSANDS = (
    HEAD
    + """templates:
  box:
    devices: [{id: gpu, count: 8, sku: h100-sxm-80}]
    switches: [{id: nvswitch, kind: nvlink}]
    nics: [{id: nic, count: 8}]
    links:
      - {from: "gpu:*", to: nvswitch, kind: nvlink, count: 18, bandwidth: 450 GB/s, peer_access: direct,
         bidirectional: true}
      - {from: host, to: "gpu:*", kind: pcie, bandwidth: 63 GB/s, latency: 6.6 us, bidirectional: true}
      - {from: "gpu:*", to: "nic:*", each: pair, kind: pcie, bandwidth: 63 GB/s, bidirectional: true}
  rack:
    nodes: [{id: n, template: box, count: 25}]
    switches: [{id: leaf, kind: net, tier: 1}]
    links: [{from: "n*/nic:*", to: leaf, kind: net, bandwidth: 400 Gb/s, bidirectional: true}]
nodes: [{id: rack, template: rack, count: 50}]
switches: [{id: spine, count: 4, kind: net, tier: 2}]
links: [{from: "rack*/leaf", to: "spine:*", each: all, kind: net, bandwidth: 400 Gb/s, bidirectional: true}]
fabric: {tiers: [leaf, spine]}
"""
)


def load(text: str) -> Fleet:
    return load_fleet("t.yaml", text=text)


def told(text: str) -> list[tuple[str, str]]:
    with pytest.raises(DescriptionError) as caught:
        load(text)
    assert all(fault.line for fault in caught.value.faults)
    return [(fault.field, fault.message) for fault in caught.value.faults]


def ways(fleet: Fleet) -> set[tuple[str, str, str]]:
    return {(link.src, link.dst, link.kind) for link in fleet.links}


def test_a_count_makes_rows_with_running_numbers():
    fleet = load(HEAD + CARD + "devices: [{id: gpu, count: 3, sku: card}]\n")
    assert [(device.id, device.index, device.topology_id) for device in fleet.devices] == [
        ("gpu:0", 0, 500),
        ("gpu:1", 1, 501),
        ("gpu:2", 2, 502),
    ]


def test_a_node_stamps_its_template_under_its_name():
    fleet = load(HEAD + CARD + BOX + "nodes: [{id: node, template: box, count: 2}, {id: spare, template: box}]\n")
    assert [host.id for host in fleet.hosts] == ["node0/host", "node1/host", "spare/host"]
    assert len(fleet.devices) == len(fleet.nics) == 12
    device = fleet.device("node1/gpu:3")
    assert device is not None
    assert (device.host, device.index, device.sku, device.where) == ("node1/host", 3, "card", "t.yaml:7")
    assert ("node1/gpu:3", "node1/nvswitch", "nvlink") in ways(fleet)
    assert ("spare/host", "spare/gpu:0", "pcie") in ways(fleet)
    assert ("node0/gpu:2", "node0/nic:2", "pcie") in ways(fleet)
    assert ("node0/gpu:2", "node0/nic:1", "pcie") not in ways(fleet)
    assert not any(src.split("/")[0] != dst.split("/")[0] for src, dst, _ in ways(fleet))
    assert len({device.topology_id for device in fleet.devices}) == 12


def test_a_template_is_what_its_rows_written_out_are():
    stamped = load(HEAD + CARD + BOX + "nodes: [{id: a, template: box}]\n")
    by_hand = load(fleet_yaml(stamped))
    assert by_hand.digest == stamped.digest
    assert ways(by_hand) == ways(stamped)


def test_peer_access_stands_between_devices_and_switches_and_nowhere_else():
    fleet = load(HEAD + CARD + BOX + "nodes: [{id: a, template: box}]\n")
    access = {(link.src.split("/")[1][:3], link.dst.split("/")[1][:3]): link.peer_access for link in fleet.links}
    assert access["gpu", "nvs"] == access["nvs", "gpu"] == "direct"
    assert access["hos", "gpu"] is None
    assert access["gpu", "nic"] is None


def test_a_shipped_fleet_is_a_template_too():
    fleet = load(HEAD + "nodes: [{id: n, template: hgx-h100, count: 2}]\n")
    assert len(fleet.devices) == 16
    assert fleet.devices[0].memory.capacity.value == 81559 * 2**20
    assert ("n1/gpu:7", "n1/nvswitch", "nvlink") in ways(fleet)


def test_extends_changes_rows_of_the_shipped_fleet_by_id_and_keeps_the_others():
    text = HEAD + (
        "extends: two-gpu-nvlink\n"
        "devices: [{id: gpu:1, runtime: 2 GiB}]\n"
        "links: [{from: gpu:1, to: gpu:0, kind: nvlink, latency: 9 us}]\n"
    )
    base, fleet = load_fleet("two-gpu-nvlink"), load(text)
    assert fleet.name == "t"
    assert fleet.budget == base.budget
    assert fleet.devices[0].runtime == base.devices[0].runtime
    assert fleet.devices[1].runtime.value == 2 * GIB
    assert fleet.devices[1].memory == base.devices[1].memory
    assert fleet.devices[1].where == "t.yaml:4"
    assert fleet.devices[0].where.startswith("two-gpu-nvlink.yaml:")


def test_include_takes_rows_as_they_are_and_a_repeated_id_is_a_fault():
    text = HEAD + CARD + "include: [one-gpu]\ndevices: [{id: gpu:1, sku: card}]\n"
    assert [device.id for device in load(text).devices] == ["gpu:0", "gpu:1"]
    ((field, message),) = told(HEAD + CARD + "include: [one-gpu]\ndevices: [{id: gpu:0, sku: card}]\n")
    assert field == "devices[0].id"
    assert "is the id of devices[0].id too" in message


def test_a_sku_of_the_catalog_needs_no_row_and_may_be_begun_with():
    fleet = load(HEAD + "devices: [{id: gpu:0, sku: l40s}]\n")
    assert fleet.devices[0].memory.capacity.value == 46068 * 2**20
    text = HEAD + "skus: {mine: {extends: l40s, runtime: 3 GiB}}\ndevices: [{id: gpu:0, sku: mine}]\n"
    mine = load(text).devices[0]
    assert mine.runtime.value == 3 * GIB
    assert mine.memory.capacity == fleet.devices[0].memory.capacity
    assert mine.arch == "Ada"


def test_a_sku_of_the_file_stands_before_that_of_the_catalog():
    text = (
        HEAD + "skus: {l40s: {kind: gpu, memories: [{name: m, capacity: 1 GiB}]}}\ndevices: [{id: gpu:0, sku: l40s}]\n"
    )
    assert load(text).devices[0].memory.capacity.value == GIB


def test_each_all_is_a_mesh_without_links_to_itself():
    text = HEAD + CARD + "devices: [{id: gpu, count: 3, sku: card}]\n"
    one_way = load(text + 'links: [{from: "gpu:*", to: "gpu:*", each: all, kind: xgmi}]\n')
    both = load(text + 'links: [{from: "gpu:*", to: "gpu:*", each: all, kind: xgmi, bidirectional: true}]\n')
    assert len(one_way.links) == 6
    assert ways(one_way) == ways(both)


def test_domains_and_tiers_are_kept_with_their_members_written_out():
    text = CARD + BOX + "nodes: [{id: n, template: box, count: 2}]\n"
    fabric = 'fabric: {domains: {nvl: {kind: nvlink, members: ["n*/gpu:*"]}}, tiers: [leaf, spine]}\n'
    fleet = load(HEAD + text + fabric)
    (domain,) = fleet.domains
    assert len(domain.members) == 8
    assert domain.members[:2] == ("n0/gpu:0", "n0/gpu:1")
    assert fleet.tiers == ("leaf", "spine")
    assert load(HEAD + text).digest != fleet.digest


@pytest.mark.parametrize("text", [THOUSANDS.replace("count: 50", "count: 1"), "gb200-nvl72", "hgx-a100"])
def test_document_and_canonical_text_read_back_as_the_same_fleet(text):
    fleet = load_fleet(text) if "\n" not in text else load(text)
    for again in (load_fleet("x", text=json.dumps(fleet_document(fleet))), load_fleet("x", text=fleet_yaml(fleet))):
        assert again.digest == fleet.digest
        plain = [replace(d, where="", capacity_field="") for d in fleet.devices]
        assert [replace(d, where="", capacity_field="") for d in again.devices] == plain
        assert (again.domains, again.tiers) == (fleet.domains, fleet.tiers)
        assert [(h.id, h.node) for h in again.hosts] == [(h.id, h.node) for h in fleet.hosts]


def test_ten_thousand_gpus_load_from_fewer_than_sixty_lines():
    assert THOUSANDS.count("\n") < 60
    fleet = load(THOUSANDS)
    assert len(fleet.devices) == 10_000
    assert len(fleet.links) == 80_400


def test_work_and_memory_of_loading_grow_with_the_fleet_alone():
    spent = []
    for racks in (2, 4):
        text = THOUSANDS.replace("count: 50", f"count: {racks}")
        spent.append(counted(lambda text=text: load(text))[1])
    assert spent[1] < 2.1 * spent[0]
    tracemalloc.start()
    fleet = load(text)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000 * len(fleet.devices)


# memories


def test_a_memory_within_another_and_its_scope_are_kept():
    memories = (
        "[{name: hbm, capacity: 80 GiB, scope: device}, {name: smem, capacity: 228 KiB, within: hbm, scope: sm, "
        "managed: cached}]"
    )
    text = HEAD + f"devices: [{{id: gpu:0, memories: {memories}, default_memory: hbm}}]\n"
    inner = load(text).devices[0].memories[1]
    assert (inner.within, inner.scope, inner.managed) == ("hbm", "sm", "cached")
    assert load(text.replace("managed: cached", "managed: explicit")).digest != load(text).digest


def test_shared_memory_is_counted_once():
    memory = "{name: lpddr, capacity: 480 GiB, shared: true, physical: grace}"
    text = HEAD + f"devices:\n  - {{id: gpu:0, memories: [{memory}]}}\n  - {{id: cpu:0, memories: [{memory}]}}\n"
    fleet = load(text)
    assert total_capacity(fleet.devices) == 480 * GIB
    assert len(distinct_memories(fleet.devices)) == 1
    stamped = load(
        HEAD + "templates:\n  a:\n    devices:\n" + "".join(f"      - {{id: {n}:0, memories: [{memory}]}}\n" for n in ("gpu", "cpu"))
        + "nodes: [{id: n, template: a, count: 3}]\n"
    )  # fmt: skip
    assert total_capacity(stamped.devices) == 3 * 480 * GIB


def test_two_devices_that_claim_one_memory_must_both_say_that_it_is_shared():
    memory = "{name: lpddr, capacity: 480 GiB, shared: true, physical: grace}"
    text = HEAD + f"devices:\n  - {{id: gpu:0, memories: [{memory}]}}\n  - {{id: cpu:0, memories: [{memory}]}}\n"
    ((field, message),) = told(text.replace("shared: true, ", "", 1))
    assert field == "devices[1]"
    assert "claims the memory grace, as gpu:0 does; write shared: true on both" in message
    ((_, message),) = told(text.replace("480 GiB", "96 GiB", 1))
    assert "480 GiB" in message
    assert "96 GiB" in message


# slices


SLICED = (
    HEAD
    + CARD
    + """devices:
  - {id: gpu:0, sku: card}
  - {id: gpu:1, sku: card}
  - {id: gpu:0/mig:0, parent: gpu:0, profile: 3g.40gb, kind: gpu, memories: [{name: hbm, capacity: 40 GiB}]}
  - {id: gpu:0/mig:1, parent: gpu:0, profile: 3g.40gb, kind: gpu, memories: [{name: hbm, capacity: 40 GiB}]}
links:
  - {from: gpu:0, to: gpu:1, kind: nvlink, bandwidth: 450 GB/s, peer_access: direct, bidirectional: true}
  - {from: host, to: gpu:0, kind: pcie, bandwidth: 63 GB/s, bidirectional: true}
"""
)


def test_slices_have_the_links_of_their_card_and_their_peers_are_unknown():
    fleet = load(SLICED)
    one = fleet.device("gpu:0/mig:1")
    assert one is not None
    assert (one.parent, one.profile, one.host, one.index) == ("gpu:0", "3g.40gb", "host", None)
    assert one.topology_id >= 3000
    found = {(link.src, link.dst): link.peer_access for link in fleet.links}
    assert found["gpu:0/mig:1", "host"] is None
    assert found["gpu:0/mig:1", "gpu:1"] == "unknown"
    assert found["gpu:0", "gpu:1"] == "direct"
    assert ("gpu:0/mig:0", "gpu:0/mig:1") not in found
    assert total_capacity(fleet.devices) == 160 * GIB


def test_slices_may_fill_their_card_and_no_more():
    (fault,) = told(SLICED.replace("40 GiB}]}\nlinks", "41 GiB}]}\nlinks"))
    assert "more than the card's 85,899,345,920 B (80 GiB)" in fault[1]


@pytest.mark.parametrize(
    ("old", "new", "field", "said"),
    [
        ("parent: gpu:0, profile: 3g.40gb, kind: gpu, memories: [{name: hbm, capacity: 40 GiB}]", "profile: x, sku: card, index: 3", "devices[2].profile", "name the card with parent"),
        ("parent: gpu:0", "parent: gpu:0/mig:0", "devices[2].parent", "is the slice itself"),
        ("parent: gpu:0", "parent: gpu:9", "devices[2].parent", "is no device here; did you mean gpu:"),
        ("mig:1, parent: gpu:0,", "mig:1, parent: gpu:0/mig:0,", "devices[3].parent", "is a slice itself; name the card"),
        (", kind: gpu, memories: [{name: hbm, capacity: 40 GiB}]", ", sku: card", "devices[2]", "needs memories of its own"),
    ],
)  # fmt: skip
def test_a_slice_that_cannot_be_is_told(old, new, field, said):
    found = told(SLICED.replace(old, new, 1))
    assert (field, True) in [(name, said in message) for name, message in found]


# faults


@pytest.mark.parametrize(
    ("text", "field", "said"),
    [
        ("nodes: [{id: n, template: bx}]\n", "nodes[0].template", "did you mean box?"),
        ("nodes: [{id: n, template: box, count: 0}]\n", "nodes[0].count", "from 1 to"),
        ("nodes: [{id: n, template: box, count: 100000}]\n", "nodes[0].count", "at most 300,000"),
        ("nodes: [{id: n, template: box}, {id: n, template: box}]\n", "nodes[1].id", "nodes[0].id too"),
        ("nodes: [{id: n, template: box, count: 2}, {id: n1, template: box}]\n", "nodes[1].id", "n1 is the node"),
        (f"nodes: [{{id: {'n' * 60}, template: box}}]\n", "nodes[0].id", "at most 64"),
        ("nodes: [{id: n, template: box}]\nlinks: [{from: n/gpu:0, to: n/gpu:9, kind: net}]\n", "links[0].to", "no device"),
        ("nodes: [{id: n, template: box}]\nlinks: [{from: n/gpu:0, to: n, kind: net}]\n", "links[0].to", "is a node"),
        ('nodes: [{id: n, template: box}]\nlinks: [{from: n/host, to: "m*/gpu:*", kind: net}]\n', "links[0].to", "matches no"),
        ('nodes: [{id: n, template: box}]\nlinks: [{from: "n/nic:*", to: "n/gpu:*", kind: net}]\n', "links[0]", "each: pair"),
        ('nodes: [{id: n, template: box}]\nlinks: [{from: n/host, to: n/gpu:0, each: all, kind: net}]\n', "links[0].each", "remove"),
        ('nodes: [{id: n, template: box}]\nlinks: [{from: "n/nic:*", to: "n/*", each: pair, kind: net}]\n', "links[0]", "as many"),
        ('nodes: [{id: n, template: box, count: 40}]\nlinks: [{from: "n*/gpu:*", to: "n*/gpu:*", each: all, kind: net}]\n', "links[0]", "by a switch"),
        ('nodes: [{id: n, template: box}]\nlinks: [{from: n/host, to: "n/gpu:*", kind: pcie}]\n', "links[0]", "there already"),
        ("nodes: [{id: n, template: box}]\nlinks: [{from: n/nic:0, to: n/gpu:0, kind: net, peer_access: direct}]\n", "links[0].peer_access", "NIC end"),
        ("nodes: [{id: n, template: box}]\ndevices: [{id: n/gpu:0, sku: card}]\n", "nodes", "is there already"),
        ("nodes: [{id: n, template: box}]\nfabric: {domains: {d: {kind: nvlink, members: [n/gpu:7]}}}\n", "fabric.domains.d.members[0]", "no device"),
        ("devices: [{id: gpu, count: 5000, sku: card}]\n", "devices[0].count", "nodes with a count"),
        ("devices: [{id: gpu, count: 101, sku: card}]\n", "devices[0].id", "0..99"),
        ("extends: tow-gpu-nvlink\n", "extends", "did you mean two-gpu-nvlink?"),
        ("include: [nothing-like-it]\ndevices: [{id: gpu:0, sku: card}]\n", "include[0]", "no shipped fleet"),
        ("devices: [{id: gpu:0, sku: l4s}]\n", "devices[0].sku", "did you mean l4"),
        ("nics: [{id: gpu:0}]\ndevices: [{id: gpu:0, sku: card}]\n", "nics[0].id", "devices[0].id too"),
        ("nics: [{id: nic, host: hots}]\ndevices: [{id: gpu:0, sku: card}]\n", "nics[0].host", "did you mean host?"),
        ("switches: [{id: s, kind: nvlnk}]\ndevices: [{id: gpu:0, sku: card}]\n", "switches[0].kind", "did you mean nvlink?"),
        ("switches: [{id: s, kind: net, teir: 1}]\ndevices: [{id: gpu:0, sku: card}]\n", "switches[0].teir", "did you mean tier?"),
    ],
)  # fmt: skip
def test_what_cannot_be_stamped_or_joined_is_told_at_its_place(text, field, said):
    found = told(HEAD + CARD + BOX + text)
    assert any(name == field and said in message for name, message in found), found


def test_a_fault_inside_a_template_is_told_at_its_own_line():
    text = HEAD + CARD + BOX.replace("kind: nvlink}", "kind: nvlnk}") + "nodes: [{id: n, template: box}]\n"
    with pytest.raises(DescriptionError) as caught:
        load(text)
    (fault,) = caught.value.faults
    assert (fault.line, fault.field) == (8, "templates.box.switches[0].kind")


def test_templates_that_contain_each_other_are_told_with_the_whole_round():
    round_ = "templates: {a: {nodes: [{id: x, template: b}]}, b: {nodes: [{id: y, template: a}]}}\n"
    found = told(HEAD + round_ + "nodes: [{id: n, template: a}]\n")
    assert any("goes round: a -> b -> a; break it" in message for _, message in found)


def test_templates_that_double_at_every_level_are_refused_before_they_are_made():
    names = [f"t{i}" for i in range(40)]
    rows = [f"  {a}: {{nodes: [{{id: x, template: {b}, count: 99}}]}}\n" for a, b in itertools.pairwise(names)]
    text = HEAD + CARD + "templates:\n  t39: {devices: [{id: gpu:0, sku: card}]}\n" + "".join(rows)
    found, calls = counted(lambda: told(text + "nodes: [{id: n, template: t0}, {id: m, template: t36}]\n"))
    assert calls < 1_000_000
    assert any("nested deeper" in message for _, message in found)
    found = told(text.replace("template: t39", "template: t38") + "nodes: [{id: m, template: t37}]\n")
    assert found


def test_a_cycle_of_memories_is_told_once_and_in_full():
    memories = "[{name: a, within: b}, {name: b, within: c}, {name: c, within: a}]"
    found = told(HEAD + f"devices: [{{id: gpu:0, memories: {memories}, default_memory: a}}]\n")
    assert [message for _, message in found] == ["goes round: a -> b -> c -> a; break it"]


@pytest.mark.parametrize(
    ("memories", "said"),
    [
        ("[{name: a}, {name: b, within: c}]", "is no memory of this device"),
        ("[{name: a, capacity: 1 GiB}, {name: b, within: a, capacity: 2 GiB}]", "is more than a around it has"),
        ("[{name: a, scope: sm}, {name: b, within: a, scope: device}]", "device is broader than sm"),
        ("[{name: a, scope: galaxy}, {name: b}]", "must be one of device, sm, cta, thread"),
    ],
)
def test_a_memory_that_cannot_lie_where_it_is_put_is_told(memories, said):
    found = told(HEAD + f"devices: [{{id: gpu:0, memories: {memories}, default_memory: a}}]\n")
    assert any(said in message for _, message in found)


def test_a_child_as_large_as_its_parent_is_fine():
    memories = "[{name: a, capacity: 1 GiB}, {name: b, within: a, capacity: 1 GiB}]"
    assert load(HEAD + f"devices: [{{id: gpu:0, memories: {memories}, default_memory: a}}]\n").devices


def test_capacities_that_pass_63_bits_together_are_exact_and_warned_of():
    skus = "skus: {card: {kind: gpu, memories: [{name: hbm, capacity: 8191 PiB}]}}\n"
    fleet = load(HEAD + skus + "devices: [{id: gpu, count: 9, sku: card}]\n")
    assert total_capacity(fleet.devices) == 9 * 8191 * 2**50
    assert any("passes 63 bits" in text for text in fleet.warnings)
