"""What is shipped: each SKU says what the reference figures say, and how far each of them is to be trusted."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fleet.catalog import catalog_names
from fleet.catalog.listing import listed
from fleet.catalog.skus import sku_names, sku_text
from fleet.load import load_fleet
from fleet.machine import Figure
from fleet.schema import SkuFile
from fleet.units import parse_bytes, parse_rate
from fleet.yaml_source import parse_text

FACTS = Path(__file__).parents[2] / ".." / "shared" / "data" / "hardware_facts.json"
EIGHT = ("hgx-a100", "hgx-h100", "hgx-h200", "hgx-b200", "mi300x-x8", "pcie-l40s", "pcie-rtx-4090")


def sku(name: str) -> SkuFile:
    document = parse_text(sku_text(name), name)
    assert document.faults == ()
    return SkuFile.model_validate(document.data, context={"source": "NO SOURCE"})


@pytest.mark.parametrize("name", sku_names())
def test_every_figure_of_a_shipped_sku_names_its_source(name):
    card = sku(name)
    quantities = [q for m in card.memories for q in (m.capacity, m.bandwidth, m.granule)]
    quantities += [q for port in card.ports.values() for q in (port.bandwidth, port.latency)]
    figures = [figure for q in quantities for figure in (q.declared, q.observed) if figure is not None]
    assert figures
    assert all(figure.source != "NO SOURCE" and figure.source for figure in figures)


@pytest.mark.parametrize("name", sku_names())
def test_a_shipped_sku_is_usable_by_its_name_alone(name):
    kind = sku(name).kind
    fleet = load_fleet("f", text=f"schema: kvwaybill/fleet/1\nname: f\ndevices: [{{id: '{kind}:0', sku: {name}}}]\n")
    assert fleet.devices[0].kind == kind
    assert fleet.devices[0].sku == name


def trusted(figure: Figure | None, fact: dict[str, Any]) -> None:
    assert figure is not None
    assert figure.provenance == ("measured" if fact["confidence"] == "measured" else "spec")
    assert figure.verified is (fact["confidence"] != "memory")


@pytest.mark.shared
def test_each_sku_says_what_the_reference_figures_say():
    if not FACTS.exists():
        pytest.skip("shared/data/hardware_facts.json is not beside the project")
    facts = json.loads(FACTS.read_text())["skus"]
    assert set(sku_names()) == set(facts)
    for name, fact in facts.items():
        card = sku(name)
        memory = card.memories[0]
        if fact.get("device_reported"):
            assert memory.capacity.value == parse_bytes(f"{fact['device_reported']['value']} MiB")
            trusted(memory.capacity.declared, fact["device_reported"])
        else:
            assert memory.capacity.value is None
        if fact.get("memory_bandwidth") and name != "host-x86-2s":
            assert memory.bandwidth.value == parse_rate(f"{fact['memory_bandwidth']['value']} GB/s")
            trusted(memory.bandwidth.declared, fact["memory_bandwidth"])
        for kind in ("nvlink", "xgmi"):
            lanes = fact.get(kind) or {}
            if "links_per_gpu" in lanes:
                port = card.ports[kind]  # type: ignore[index]  # one of the kinds
                assert port.count == lanes["links_per_gpu"]["value"]
                assert port.bandwidth.value == parse_rate(f"{lanes['per_link_per_direction']['value']} GB/s")
                trusted(port.bandwidth.declared, lanes["per_link_per_direction"])
        if fact.get("pcie"):
            assert card.ports["pcie"].bandwidth.value == parse_rate(
                f"{fact['pcie']['raw_per_direction']['value']} GB/s"
            )


def test_only_what_was_measured_on_a_card_is_called_measured():
    assert {name for name in sku_names() if _provenance(name) == "measured"} == {"h200-sxm-141"}
    granules = {name: sku(name).memories[0].granule.declared for name in sku_names()}
    measured = {name for name, granule in granules.items() if granule and granule.provenance == "measured"}
    assert measured == {"a100-sxm-40", "a100-sxm-80", "a100-pcie-80", "h200-sxm-141"}


def _provenance(name: str) -> str | None:
    runtime = sku(name).runtime
    return runtime.declared.provenance if runtime and runtime.declared else None


@pytest.mark.parametrize("name", EIGHT)
def test_the_common_boxes_have_eight_devices_and_links_both_ways(name):
    fleet = load_fleet(name)
    assert len(fleet.devices) == 8
    ways = {(link.src, link.dst) for link in fleet.links}
    assert all((dst, src) in ways for src, dst in ways)
    assert all(link.bandwidth.value for link in fleet.links)


def test_the_rack_is_one_domain_of_72_gpus_over_36_hosts_in_18_nodes():
    fleet = load_fleet("gb200-nvl72")
    assert (len(fleet.devices), len(fleet.hosts), len(fleet.domains[0].members)) == (72, 36, 72)
    assert len(fleet.links) == 72 * 2 + 72 * 2
    assert len({device.topology_id for device in fleet.devices}) == 72
    node = {host.id: host.node for host in fleet.hosts}
    trays = Counter(node[device.host] for device in fleet.devices)
    assert sorted(trays.values()) == [4] * 18


def test_the_catalog_is_searched_by_name_label_arch_and_sku():
    fleets, skus = listed()
    assert [row["name"] for row in fleets] == list(catalog_names())
    assert [row["name"] for row in skus] == list(sku_names())
    fleets, skus = listed("hopper")
    assert "hgx-h200" in {row["name"] for row in fleets}
    assert {row["name"] for row in skus} == {"h100-nvl-94", "h100-pcie-80", "h100-sxm-80", "h200-sxm-141"}
    assert listed("nothing like it") == ([], [])
    assert {row["name"] for row in listed("MI300X")[0]} == {"mi300x-x8"}
