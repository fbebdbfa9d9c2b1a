"""Shared segments: what flows have in common, and laws of the time that they take together."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.machine import Duplex, Figure, Fleet, Host, Link, PeerAccess, Quantity, Switch
from fleet.placement import Placement
from planner.admit import Ask, admit
from planner.contention import Flow, SharedSegment, contention_document, handoff_contention, shared_segments
from planner.machine import link_time
from planner.plan import row_document
from planner.request import Request
from planner.rows import Row
from tests.command_line import Ask as Command
from tests.command_line import asker, write_json
from tests.planner.fleets import GB, device, known, llama2c

US = 10**6


def box(duplex: Duplex | None = None, engines: int | None = None, uplink: int | None = 50 * GB) -> Fleet:
    """Four GPUs behind two PCIe switches; each switch has one uplink to the host and one link to the other switch."""

    def both(a: str, b: str, rate: int | None, access: PeerAccess | None = None) -> list[Link]:
        held = Quantity() if rate is None else known(rate)
        return [
            Link(
                src=s, dst=d, kind="pcie", bandwidth=held, latency=known(US), peer_access=access, duplex=duplex,
                copy_engines=engines, where=f"{s}-{d}",
            )
            for s, d in ((a, b), (b, a))
        ]  # fmt: skip

    links = [*both("host", "sw:0", uplink), *both("host", "sw:1", uplink), *both("sw:0", "sw:1", 30 * GB, "direct")]
    for number in range(4):
        links += both(f"gpu:{number}", f"sw:{number // 2}", 60 * GB, "direct")
    devices = tuple(device(f"gpu:{number}", topology_id=500 + number) for number in range(4))
    switches = tuple(Switch(id=f"sw:{number}", kind="pcie") for number in range(2))
    return Fleet(name="box", hosts=(Host(id="host"),), devices=devices, links=tuple(links), switches=switches)


def rows_of(fleet: Fleet, prefill: str, decode: str) -> tuple[Row, ...]:
    placement = Placement(prefill=prefill, decode=decode)
    asked = Request(prompt_tokens=14, steps=40)
    prediction = admit(Ask(fleet=fleet, model=llama2c(), request=asked, placement=placement)).prediction
    assert prediction is not None
    return prediction.rows


def ends(segment: SharedSegment) -> tuple[str, str]:
    return segment.src, segment.dst


def test_weights_of_two_devices_behind_one_switch_share_its_uplink() -> None:
    [entry] = [e for e in contention_document(rows_of(box(), "gpu:0", "gpu:1")) if e["phase"] == "stage"]
    assert (entry["src"], entry["dst"], entry["kind"]) == ("host", "sw:0", "pcie")
    flows = entry["flows"]
    assert isinstance(flows, list)
    assert [flow["dst"] for flow in flows] == ["gpu:0", "gpu:1"]
    weights, copies = flows[0]["bytes"], flows[0]["copies"]
    assert entry["bytes"] == 2 * weights
    assert entry["alone_s"] == pytest.approx(copies * 1e-6 + weights / (50 * GB))
    assert entry["together_s"] == pytest.approx(max(copies * 1e-6 + weights / (50 * GB), 2 * weights / (50 * GB)))


def test_devices_behind_their_own_switches_share_nothing_and_such_a_plan_has_no_entry() -> None:
    assert contention_document(rows_of(box(), "gpu:0", "gpu:2")) == []


def test_two_handoffs_over_one_link_of_switches_share_it_and_two_elsewhere_do_not() -> None:
    fleet = box()
    first, second = rows_of(fleet, "gpu:0", "gpu:2"), rows_of(fleet, "gpu:1", "gpu:3")
    [segment] = handoff_contention([("a", first), ("b", second)])
    assert ends(segment) == ("sw:0", "sw:1")
    assert {flow.name for flow in segment.flows} == {"a", "b"}
    moved = sum(row.bytes for row in (*first, *second) if row.phase == "handoff")
    assert segment.bytes == moved
    assert segment.together is not None
    assert segment.together >= Fraction(moved, 30 * GB)
    back = rows_of(fleet, "gpu:3", "gpu:1")
    assert handoff_contention([("a", first), ("b", back)]) == ()


def test_directions_divide_a_link_only_where_its_duplex_is_shared() -> None:
    there, back = rows_of(box(), "gpu:0", "gpu:2"), rows_of(box(), "gpu:3", "gpu:1")
    assert handoff_contention([("a", there), ("b", back)]) == ()
    fleet = box(duplex="shared")
    found = handoff_contention([("a", rows_of(fleet, "gpu:0", "gpu:2")), ("b", rows_of(fleet, "gpu:3", "gpu:1"))])
    assert [(ends(segment), segment.both_ways) for segment in found] == [(("sw:0", "sw:1"), True)]


def test_one_copy_engine_drives_one_copy_after_the_other() -> None:
    times: list[Fraction] = []
    for engines in (None, 2, 1):
        fleet = box(engines=engines)
        pairs = [("a", rows_of(fleet, "gpu:0", "gpu:2")), ("b", rows_of(fleet, "gpu:1", "gpu:3"))]
        [segment] = handoff_contention(pairs)
        assert segment.together is not None
        times.append(segment.together)
        [link] = {link for flow in segment.flows for link in flow.links if link.src == "sw:0"}
        each = [link_time(link, flow.bytes, flow.copies) or Fraction(0) for flow in segment.flows]
        assert engines != 1 or segment.together == sum(each)
    assert times == sorted(times)
    assert times[0] < times[2]


def test_an_unpriced_segment_stays_unpriced() -> None:
    [entry] = [e for e in contention_document(rows_of(box(uplink=None), "gpu:0", "gpu:1")) if e["phase"] == "stage"]
    assert (entry["bandwidth_bytes_per_s"], entry["alone_s"], entry["together_s"]) == (None, None, None)


LINKS = tuple(
    Link(src=f"n{i}", dst=f"n{i + 1}", kind="pcie", bandwidth=known(rate), latency=known(US), copy_engines=engines)
    for i, (rate, engines) in enumerate([(1, None), (10**9, 1), (7 * 10**9, 2), (10**12, None), (3, 4)])
)
CHAINS = st.lists(st.integers(0, len(LINKS) - 1), min_size=1, max_size=3, unique=True)
FLOWS = st.lists(
    st.builds(
        lambda chain, nbytes, copies: Flow(
            src="a", dst="b", kind="p2p", bytes=nbytes, copies=copies, links=tuple(LINKS[i] for i in chain)
        ),
        CHAINS, st.integers(0, 10**12), st.integers(1, 1000),
    ),
    max_size=6,
)  # fmt: skip


def by_ends(flows: list[Flow]) -> dict[tuple[str, str], SharedSegment]:
    return {ends(segment): segment for segment in shared_segments(flows)}


@given(FLOWS)
@settings(max_examples=150, deadline=None)
def test_a_shared_segment_never_makes_anything_faster(flows: list[Flow]) -> None:
    for segment in shared_segments(flows):
        assert len(segment.flows) > 1
        [link] = {link for flow in segment.flows for link in flow.links if (link.src, link.dst) == ends(segment)}
        alone = [link_time(link, flow.bytes, flow.copies) for flow in segment.flows]
        assert segment.together is not None
        assert all(time is not None and segment.together >= time for time in alone)
        assert segment.together <= sum(time for time in alone if time is not None), "nor slower than one by one"


@given(FLOWS, FLOWS)
@settings(max_examples=150, deadline=None)
def test_flows_without_a_common_segment_do_not_touch_each_other(some: list[Flow], others: list[Flow]) -> None:
    used = {link.src for flow in some for link in flow.links}
    apart = [flow for flow in others if not used & {link.src for link in flow.links}]
    assert by_ends([*some, *apart]) == by_ends(some) | by_ends(apart)


@given(FLOWS, FLOWS)
@settings(max_examples=100, deadline=None)
def test_one_more_flow_never_makes_a_segment_faster(some: list[Flow], more: list[Flow]) -> None:
    before, after = by_ends(some), by_ends([*some, *more])
    for where, segment in before.items():
        assert (after[where].together or 0) >= (segment.together or 0)


@pytest.fixture
def ask(capfd: pytest.CaptureFixture[str]) -> Command:
    return asker(capfd)


def test_the_plan_of_a_switched_box_prints_and_explains_what_is_shared(tmp_path: Path, ask: Command) -> None:
    row = {"kind": "pcie", "bandwidth": "50 GB/s", "latency": "1 us", "bidirectional": "true"}
    described = {
        "schema": "kvwaybill/fleet/1", "name": "box",
        "skus": {"card": {"kind": "gpu", "memories": [{"name": "hbm", "capacity": "64 MiB"}], "runtime": "0 B"}},
        "devices": [{"id": "gpu:0", "sku": "card"}, {"id": "gpu:1", "sku": "card"}],
        "switches": [{"id": "sw", "kind": "pcie"}],
        "links": [row | {"from": "host", "to": "sw"}]
        + [row | {"from": f"gpu:{n}", "to": "sw", "peer_access": "direct"} for n in range(2)],
    }  # fmt: skip
    path, plan = write_json(tmp_path / "box.yaml", described), tmp_path / "plan.json"
    asked = ("admit", "--fleet", path, "--prompt", "Once", "--steps", "12")
    answer = ask(*asked, "--plan-out", plan)
    assert answer.code == 0
    assert "Shared" in answer.out
    assert "host -> sw pcie" in answer.out
    assert any(words.startswith("contention:") for words in ask(*asked, "-o", "json").document["limits"])
    told = ask("explain", plan, "shared")
    assert told.code == 0
    assert "stage shared host->sw" in told.out
    assert "DOES NOT FOLLOW" not in told.out
    assert ask("run", plan).code == 0


def test_a_fleet_without_switches_is_not_told_of_contention(ask: Command) -> None:
    document = ask("admit", "two-gpu", "-o", "json").document
    assert "contention" not in document
    assert not any(words.startswith("contention:") for words in document["limits"])


def test_legs_tell_the_rate_they_rest_on_and_where_it_comes_from() -> None:
    fleet = box()
    guessed = Quantity(declared=Figure(value=GB, provenance="policy", source="test", verified=False))
    slow = replace(fleet.links[0], bandwidth=guessed)
    assert (slow.src, slow.dst) == ("host", "sw:0")
    links = (slow, *(link for link in fleet.links[1:] if {link.src, link.dst} != {"sw:0", "sw:1"}))
    row = rows_of(replace(fleet, links=links), "gpu:0", "gpu:1")[0]
    [leg] = row_document(row)["legs"]
    assert (leg["bandwidth_bytes_per_s"], leg["latency_s"]) == (GB, 2e-6)
    assert (leg["provenance"], leg["verified"]) == ("policy", False)


def four_behind_two(tmp_path: Path) -> Path:
    """Two switches of two GPUs each, joined by one link."""
    row = {"kind": "pcie", "bandwidth": "50 GB/s", "latency": "1 us", "bidirectional": "true", "peer_access": "direct"}
    card = {"kind": "gpu", "memories": [{"name": "hbm", "capacity": "64 MiB"}], "runtime": "0 B"}
    links = [{**row, "from": f"gpu:{n}", "to": f"sw:{n // 2}"} for n in range(4)]
    links += [{**row, "from": "sw:0", "to": "sw:1", "bandwidth": "20 GB/s"}]
    host = {name: value for name, value in row.items() if name != "peer_access"}
    links += [{**host, "from": "host", "to": f"sw:{n}"} for n in range(2)]
    described = {
        "schema": "kvwaybill/fleet/1", "name": "box", "skus": {"card": card},
        "devices": [{"id": f"gpu:{n}", "sku": "card"} for n in range(4)],
        "switches": [{"id": f"sw:{n}", "kind": "pcie"} for n in range(2)], "links": links,
    }  # fmt: skip
    return write_json(tmp_path / "box.yaml", described)


def test_explain_tells_what_concurrent_handoffs_share(tmp_path: Path, ask: Command) -> None:
    fleet, plans = four_behind_two(tmp_path), {}
    for name, prefill, decode in (("a", 0, 2), ("b", 1, 3), ("c", 0, 1)):
        plans[name] = tmp_path / f"{name}.json"
        placed = ("--prefill", f"gpu:{prefill}", "--decode", f"gpu:{decode}")
        asked = ("--prompt", "Once", "--steps", "12")
        assert ask("admit", "--fleet", fleet, *placed, *asked, "--plan-out", plans[name]).code == 0
    told = ask("explain", plans["a"], "--with", plans["b"], "-o", "json")
    assert told.code == 0
    [derivation, first, second] = told.document["derivations"]
    assert derivation["subject"] == "handoff shared sw:0->sw:1"
    assert [each["subject"].endswith("queued") for each in (first, second)] == [True, True]
    assert first["terms"][0] == "waits for nobody"
    assert "behind plan 1" in second["terms"][0]
    assert len(derivation["terms"]) == 3
    assert all("of plan " in term for term in derivation["terms"][:2])
    assert ask("explain", plans["b"], "--with", plans["c"], "-o", "json").document["derivations"][0]["bytes"] is None
    twice = ask("explain", plans["a"], "--with", plans["a"], "-o", "json").document["derivations"]
    shared = [each["subject"] for each in twice if "shared" in each["subject"]]
    assert {subject.rpartition(" ")[2] for subject in shared} == {"gpu:0->sw:0", "sw:0->sw:1", "sw:1->gpu:2"}


def test_plans_of_other_fleets_or_a_subject_beside_are_wrong_use(tmp_path: Path, ask: Command) -> None:
    plans = [tmp_path / "a.json", tmp_path / "b.json"]
    asked = ("--prompt", "Once", "--steps", "12")
    for name, plan in zip(("two-gpu-nvlink", "two-gpu-staged"), plans, strict=True):
        assert ask("admit", "--fleet", name, *asked, "--plan-out", plan).code == 0
    other = ask("explain", plans[0], "--with", plans[1])
    assert other.code == 2
    assert "different fleets (two-gpu-nvlink and two-gpu-staged)" in other.err
    assert ask("explain", plans[0], "handoff", "--with", plans[0]).code == 2
    staged = ask("explain", plans[1], "--with", plans[1], "-o", "json").document["derivations"]
    shared = {each["subject"] for each in staged if "shared" in each["subject"]}
    assert shared == {"handoff shared gpu:0->host", "handoff shared host->gpu:1"}
