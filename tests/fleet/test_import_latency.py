"""Latencies of a card's ports come with `--sku`, to links that they are stated of and to no others."""

from __future__ import annotations

from fleet.readers import read_foreign

MATRIX = (
    "\tGPU0\tGPU1\tGPU2\tCPU Affinity\tNUMA Affinity\n"
    "GPU0\t X \tNV18\tSYS\t0-3\t0\nGPU1\tNV18\t X \tSYS\t0-3\t0\nGPU2\tSYS\tSYS\t X \t4-7\t1\n"
)


def latencies(sku: str | None) -> dict[tuple[str, str], int | None]:
    fleet = read_foreign(MATRIX, "m.txt", sku=sku).fleet
    assert fleet is not None
    return {(link.src, link.dst): link.latency.value for link in fleet.links}


def test_the_slot_of_the_card_gives_its_host_links_a_latency_and_no_peer_one() -> None:
    told = latencies("h200")
    hosts = {ends: value for ends, value in told.items() if "host" in ends}
    assert set(hosts.values()) == {6_600_000}
    assert len(hosts) == 6
    assert told["gpu:0", "gpu:1"] is None, "the catalog states none of NVLink"
    assert told["gpu:0", "gpu:2"] is None, "a slot's latency is no peer's"


def test_without_a_card_or_with_one_that_states_none_it_stays_unknown() -> None:
    assert set(latencies(None).values()) == {None}
    assert set(latencies("l40s").values()) == {None}


def test_a_latency_that_was_measured_on_another_machine_is_a_spec_here() -> None:
    fleet = read_foreign(MATRIX, "m.txt", sku="h200").fleet
    assert fleet is not None
    [figure] = {link.latency.declared for link in fleet.links if link.dst == "host"}
    assert figure is not None
    assert figure.provenance == "spec"
    assert "H200" in figure.source
