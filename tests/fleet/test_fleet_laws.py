"""The laws that fleet files keep, the shipped ones, and what their reading costs."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.catalog import catalog_names, catalog_text
from fleet.errors import DescriptionError
from fleet.load import load_fleet
from fleet.machine import Fleet
from fleet.render import fleet_document
from fleet.units import write_bytes
from tests.fleet_texts import SMALL, figures_of, shown_again, small, without_places
from tests.strategies import fleet_files, written


@settings(max_examples=60, deadline=None)
@given(fleet_files(), st.randoms(use_true_random=False))
def test_a_permuted_file_is_the_same_fleet(data, shuffle):
    fleet = load_fleet("f", text=written(data))
    other = load_fleet("f", text=written(data, shuffle))
    assert other.digest == fleet.digest
    assert without_places(other) == without_places(replace_memory_order(fleet, other))


def replace_memory_order(fleet: Fleet, like: Fleet) -> Fleet:
    """The fleet with each device's memories listed in the order of `like`: their order is the file's."""
    devices = []
    for device, other in zip(fleet.devices, like.devices, strict=True):
        names = [memory.name for memory in other.memories]
        devices.append(replace(device, memories=tuple(sorted(device.memories, key=lambda m: names.index(m.name)))))
    return replace(fleet, devices=tuple(devices))


@settings(max_examples=60, deadline=None)
@given(fleet_files())
def test_the_document_of_a_fleet_reads_back_as_the_same_fleet(data):
    fleet = load_fleet("f", text=written(data))
    again = shown_again(fleet)
    assert without_places(again) == without_places(fleet)
    assert again.digest == fleet.digest
    compact = json.dumps(fleet_document(fleet), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert load_fleet("f", text=compact).digest == fleet.digest


@settings(max_examples=60, deadline=None)
@given(fleet_files(), st.integers(1, 2**40), st.integers(1, 2**40))
def test_digests_are_equal_exactly_when_the_figures_are(data, first, second):
    digests = []
    for capacity in (first, second):
        data["skus"]["a-card"]["memories"][0]["capacity"] = write_bytes(capacity)
        digests.append(load_fleet("f", text=written(data)).digest)
    assert (digests[0] == digests[1]) == (first == second)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("450 GB/s", "451 GB/s"),
        ("9.79 us", "9.790001 us"),
        ("2 MiB", "4 MiB"),
        ("name: small", "name: smaller"),
        ("id: gpu:1, ", "id: gpu:1, numa: 0, "),
        ("kind: nvlink", "kind: nvlink, peer_access: direct"),
        ("kind: nvlink", "kind: nvlink, count: 2"),
        ("80 GiB", "{value: 80 GiB, provenance: policy}"),
        ("name: small", "name: small\nbudget: {reserve: 1 B}"),
    ],
)
def test_whatever_a_plan_may_read_changes_the_digest(old, new):
    assert load_fleet("s", text=SMALL.replace(old, new)).digest != small().digest


def test_prose_does_not_change_the_digest():
    changed = SMALL.replace("80 GiB", "{value: 80 GiB, note: as sold, verified: false, source: sheet}")
    assert load_fleet("other-name.yaml", text=f"# words\nlabel: x\n{changed}").digest == small().digest


@pytest.mark.parametrize("name", catalog_names())
def test_each_shipped_fleet_loads_without_warning_and_every_figure_names_its_source(name):
    fleet = load_fleet(name)
    assert [text for text in fleet.warnings if name != "mi300x-x8" or "runtime" not in text] == []
    assert (fleet.name, fleet.source) == (name, name)
    for quantity in figures_of(fleet):
        for figure in (quantity.declared, quantity.observed):
            assert figure is None or not figure.source.endswith(".yaml")
    assert without_places(shown_again(fleet)) == without_places(fleet)


def test_the_shipped_fleets_are_those_that_the_scenarios_name():
    assert set(catalog_names()) >= {
        "two-gpu-nvlink",
        "two-gpu-pcie",
        "two-gpu-staged",
        "one-gpu",
        "gpu-and-cpu",
        "two-gpu-unknown",
        "two-gpu-tight",
    } | {
        "hgx-a100", "hgx-h100", "hgx-h200", "hgx-b200", "gb200-nvl72", "mi300x-x8", "pcie-l40s", "pcie-l4", "pcie-a10",
        "pcie-rtx-4090", "cpu-host",
    }  # fmt: skip


def test_the_shipped_pair_has_links_both_ways_to_its_host_and_between_its_devices():
    fleet = load_fleet("two-gpu-nvlink")
    ways = {(link.src, link.dst): link for link in fleet.links}
    assert set(ways) == {(a, b) for a in ("gpu:0", "gpu:1", "host") for b in ("gpu:0", "gpu:1", "host") if a != b}
    assert ways["gpu:0", "gpu:1"].bandwidth.value == 450 * 10**9
    assert ways["gpu:1", "gpu:0"].peer_access == "direct"
    assert load_fleet("two-gpu-staged").links[0].peer_access == "staged"
    assert load_fleet("two-gpu-unknown").devices[0].memory.capacity.value is None
    assert {d.id: d.topology_id for d in load_fleet("gpu-and-cpu").devices} == {"cpu:0": 0, "gpu:0": 500}


def test_a_file_stands_before_a_shipped_fleet_of_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one-gpu").write_text(SMALL)
    assert load_fleet("one-gpu").name == "small"


def test_an_unknown_name_hints_at_the_nearest_shipped_fleet():
    with pytest.raises(DescriptionError, match=r"no such file.*did you mean two-gpu-nvlink\?"):
        load_fleet("two-gpu-nvlnk")
    with pytest.raises(DescriptionError, match="shipped"):
        catalog_text("../schema")


def test_a_thousand_devices_load_whole():
    rows = "".join(f"  - {{id: n{i // 8}/gpu:{i % 8}, sku: card, host: n{i // 8}/host}}\n" for i in range(1000))
    hosts = "".join(f"  - {{id: n{i}/host}}\n" for i in range(125))
    skus = "skus:\n  card: {kind: gpu, memories: [{name: hbm, capacity: 80 GiB}]}\n"
    fleet = load_fleet("s", text=f"schema: kvwaybill/fleet/1\nname: n\n{skus}hosts:\n{hosts}devices:\n{rows}")
    assert len({device.topology_id for device in fleet.devices}) == 1000
    assert [device.id for device in fleet.devices[:3]] == ["n0/gpu:0", "n0/gpu:1", "n0/gpu:2"]
    assert fleet.devices[16].id == "n2/gpu:0"


def test_loading_a_fleet_imports_no_heavy_package():
    code = (
        "import sys; from fleet.load import load_fleet; load_fleet('two-gpu-nvlink');"
        "sys.exit(any(m in sys.modules for m in ('numpy', 'numba', 'networkx', 'cupy', 'typer', 'rich')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_json_schema_of_the_file_names_every_field():
    from fleet.schema import fleet_schema

    schema = fleet_schema()
    own = {"schema", "name", "extends", "include", "skus", "templates", "fabric", "budget", "label"}
    assert set(schema["properties"]) == own | {"hosts", "devices", "switches", "nics", "nodes", "links"}
    assert schema["additionalProperties"] is False
    assert set(schema["$defs"]["LinkFile"]["required"]) == {"from", "to", "kind"}
    json.dumps(schema)


def test_a_document_with_no_field_beyond_the_contract_is_read():
    import json

    devices = [
        {
            "id": f"gpu:{i}",
            "topology_id": 500 + i,
            "sku": "h100",
            "uuid": None,
            "pci": None,
            "numa": None,
            "memories": [
                {
                    "name": "HBM",
                    "capacity_bytes": 80 * 2**30,
                    "bandwidth_bytes_per_s": 3_350 * 10**9,
                    "granule_bytes": 2 * 2**20,
                    "provenance": "measured",
                }
            ],
        }
        for i in (0, 1)
    ]
    link = {"kind": "nvlink", "count": 18, "bandwidth_bytes_per_s": 450 * 10**9, "latency_s": 2e-06}
    link |= {"peer_access": "direct", "provenance": "spec", "observed": None}
    links = [{"src": "gpu:0", "dst": "gpu:1", **link}, {"src": "host", "dst": "gpu:0", **link, "peer_access": None}]
    document = {"schema": "kvwaybill/fleet/1", "nodes": ["host"], "devices": devices, "nics": [], "links": links}
    fleet = load_fleet("made.json", text=json.dumps(document | {"warnings": []}))
    assert [d.id for d in fleet.devices] == ["gpu:0", "gpu:1"]
    assert fleet.devices[0].memory.capacity.value == 80 * 2**30
    assert fleet.devices[0].memory.capacity.declared.provenance == "measured"
    assert [(k.src, k.dst, k.latency.value) for k in fleet.links] == [
        ("gpu:0", "gpu:1", 2_000_000),
        ("host", "gpu:0", 2_000_000),
    ]
