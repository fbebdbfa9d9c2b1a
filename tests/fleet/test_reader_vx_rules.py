"""What Vx machine files mean: costs, routes, dispatch ids, verdict codes, each rule on a machine of a few lines."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.errors import DescriptionError
from fleet.identity import fnv1a32
from fleet.readers import vx
from fleet.readers.vx_costs import (
    Cost,
    cost_ps,
    derived_cost,
    edge_cost,
    route,
    space_dispatch_id,
    topology_dispatch_id,
)
from fleet.readers.vx_grammar import parse_machine
from fleet.readers.vx_machine import VxMachine
from fleet.readers.vx_verdicts import admission, admit_tiles, check, combine, occupied, tile_bytes

GIB = 2**30


def machine(*lines: str) -> VxMachine:
    return parse_machine("\n".join(lines), "m.vx")


def topology(*transfers: str, name: str = "T", fields: str = "memory: Memory::A") -> str:
    return f"Topology {name} {{ {fields}, " + ", ".join(f"transfer {row}" for row in transfers) + " }"


def edge(src: str, dst: str, cost: str = "") -> str:
    return f"Memory::{src} -> Memory::{dst}" + (f" : {cost}" if cost else "")


def codes(made: VxMachine, **asked: object) -> list[str]:
    return [finding.code for finding in check(made, **asked)]  # type: ignore[arg-type]  # transfers only


# ---- dispatch ids


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("CPU", 0), ("Current", 0), ("NPU", 100), ("NPU[3]", 103), ("AccCore[0]", 200), ("AMX", 300), ("ANE", 400),
        ("GPU", 500), ("GPU[99]", 599), ("CpuAvx512", 600), ("CpuNeon", 700), ("NPU[0..72]", 2009), ("GPU[0..8]", 2480),
        ("TPU", 912088492), ("Node", 879234789), ("Device", 1036766083), ("Décode", 1008701778),
    ],
)  # fmt: skip
def test_topologies_have_the_ids_of_vx(name: str, number: int) -> None:
    assert topology_dispatch_id(name) == number


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("CPU_DRAM", 0), ("NPU_HBM", 100), ("GPU_HBM", 500), ("NIC_RAM", 800), ("Remote_HBM", 900),
        ("TPU_HBM", 737069050), ("HBM", 1855308478), ("PEER_HBM", 489426827), ("L2", 383899283), ("SMEM", 2121020079),
    ],
)  # fmt: skip
def test_spaces_have_the_ids_of_vx(name: str, number: int) -> None:
    assert space_dispatch_id(name) == number


@pytest.mark.parametrize("name", ["GPU[100]", "GPU[-1]", "NPU[]", "GPU[1.0]", "GPU[0x1]", "NPU[0..101]", "NPU[..3]"])
def test_refuses_an_index_outside_its_band(name: str) -> None:
    with pytest.raises(ValueError, match=r"must lie in 0\.\."):
        topology_dispatch_id(name)


# ---- costs

TREE = (
    "Memory A { capacity: 80 GiB, bandwidth: 3.35 TB/s, scope: device }",
    "Memory B { within: Memory::A, bandwidth: 12 TB/s }",
    "Memory C { within: Memory::B, bandwidth: 128 B/cyc, clock: 1.98 GHz, replicas: 132 }",
)


def ceil(amount: int, unit: int) -> int:
    return (amount + unit - 1) // unit


def test_a_link_rate_is_charged_rounded_up() -> None:
    made = machine(topology(edge("A", "D", "63 GB/s")))
    assert cost_ps(made, "A", "D", GIB) == 17_043_521_016
    assert cost_ps(made, "A", "D", 1) == 16
    assert cost_ps(made, "A", "D", 0) == 0


def test_a_parent_that_is_an_end_is_charged_too() -> None:
    assert derived_cost(machine(*TREE), "A", "B", GIB) == Cost(320_519_948 + 89_478_486, "ps")
    assert derived_cost(machine(*TREE), "B", "A", GIB) == derived_cost(machine(*TREE), "A", "B", GIB)


def test_a_shared_parent_that_is_no_end_is_not_charged() -> None:
    siblings = machine("Memory A {}", *(f"Memory {n} {{ within: Memory::A, bandwidth: 1 GB/s }}" for n in "BC"))
    assert derived_cost(siblings, "B", "C", 10**9) == Cost(2 * 10**12, "ps")


def test_replicas_turn_an_aggregate_rate_into_that_of_one_instance() -> None:
    shared = ceil(GIB * 10**12, 12 * 10**12 // 132)
    own = ceil(ceil(GIB, 128) * 10**12, 1_980_000_000)
    assert derived_cost(machine(*TREE), "B", "C", GIB) == Cost(shared + own, "ps")
    assert shared + own == 16_047_830_773


def test_a_cycle_rate_without_a_clock_has_no_time() -> None:
    assert derived_cost(machine(*(line.replace("clock: 1.98 GHz, ", "") for line in TREE)), "B", "C", GIB) is None


def test_cycles_alone_are_cycles_and_no_time() -> None:
    made = machine(
        "Memory A { bandwidth: 64 B/cyc }",
        "Memory B { within: Memory::A, bandwidth: 128 B/cyc }",
        topology(edge("A", "B")),
    )
    assert derived_cost(made, "A", "B", 1000) == Cost(16 + 8, "cycles")
    assert edge_cost(made, made.edges[0], 1000) == Cost(24, "cycles")
    assert cost_ps(made, "A", "B", 1000) is None


def test_a_streamed_destination_costs_the_slowest_leg() -> None:
    made = machine(TREE[0], TREE[1].replace("}", ", crossing: streamed }"))
    assert derived_cost(made, "A", "B", GIB) == Cost(320_519_948, "ps")
    assert derived_cost(made, "B", "A", GIB) == Cost(320_519_948 + 89_478_486, "ps")


@pytest.mark.parametrize("pair", ["AD", "AA", "EB"])
def test_nothing_is_derived_without_a_common_ancestor_or_a_bandwidth(pair: str) -> None:
    made = machine(*TREE, "Memory D { bandwidth: 1 GB/s }", "Memory E { within: Memory::A }")
    assert derived_cost(made, pair[0], pair[1], GIB) is None


def test_a_weight_is_no_time() -> None:
    made = machine(topology(edge("A", "D", "300")))
    assert route(made, "A", "D") == ("A", "D")
    assert cost_ps(made, "A", "D", GIB) is None


def test_a_time_beyond_64_bits_is_not_known() -> None:
    assert cost_ps(machine(topology(edge("A", "D", "1 B/s"))), "A", "D", 2**63) is None


# ---- routes


def test_edges_are_one_way() -> None:
    made = machine(topology(edge("A", "D", "1 GB/s")))
    assert route(made, "A", "D") == ("A", "D")
    assert route(made, "D", "A") is None
    assert cost_ps(made, "D", "A", 1) is None
    assert route(made, "A", "A") == ("A",)
    assert cost_ps(made, "A", "A", GIB) == 0


def test_two_fast_hops_are_taken_before_a_slow_direct_edge() -> None:
    made = machine(topology(edge("A", "D", "63 GB/s"), edge("A", "X", "450 GB/s"), edge("X", "D", "450 GB/s")))
    assert route(made, "A", "D") == ("A", "X", "D")
    assert cost_ps(made, "A", "D", 9 * 10**9) == 2 * 20_000_000_000


def test_priced_edges_are_taken_before_an_unpriced_one() -> None:
    made = machine(topology(edge("A", "D", "1"), edge("A", "X", "1 GB/s"), edge("X", "D", "1 GB/s")))
    assert route(made, "A", "D") == ("A", "X", "D")


def test_weights_break_ties_between_unpriced_edges_only() -> None:
    made = machine(topology(edge("A", "X", "60"), edge("A", "Y", "20"), edge("X", "D", "1"), edge("Y", "D", "1")))
    assert route(made, "A", "D") == ("A", "Y", "D")


def test_fewer_hops_win_at_equal_cost_and_names_decide_the_rest() -> None:
    made = machine(
        topology(edge("A", "Y", "2 GB/s"), edge("A", "X", "2 GB/s"), edge("X", "D", "2 GB/s"), edge("Y", "D", "2 GB/s"))
    )
    assert route(made, "A", "D") == ("A", "X", "D")
    direct = machine(topology(edge("A", "X", "2 GB/s"), edge("X", "D", "2 GB/s"), edge("A", "D", "1 GB/s")))
    assert route(direct, "A", "D") == ("A", "D")


def test_edges_of_all_topologies_make_one_graph() -> None:
    made = machine(topology(edge("A", "D", "1 GB/s")), topology(edge("D", "E", "1 GB/s"), name="U"))
    assert route(made, "A", "E") == ("A", "D", "E")


_NAMES = st.sampled_from("ABCDE")
_EDGES = st.dictionaries(
    st.tuples(_NAMES, _NAMES).filter(lambda pair: pair[0] != pair[1]), st.integers(1, 20), max_size=12
)


@given(_EDGES, st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=60)
def test_a_route_is_the_cheapest_walk_whatever_the_order_of_the_edges(
    edges: dict[tuple[str, str], int], random: object
) -> None:
    rows = [edge(src, dst, f"{rate} GB/s") for (src, dst), rate in edges.items()]
    if not rows:
        return
    made = machine(topology(*rows))
    random.shuffle(rows)  # type: ignore[attr-defined]  # a random.Random
    assert route(machine(topology(*rows)), "A", "E") == route(made, "A", "E")
    best = {"A": 0}
    for _ in range(5):
        for (src, dst), rate in edges.items():
            if src in best:
                best[dst] = min(best.get(dst, 10**30), best[src] + 10**18 // (rate * 10**9))
    found = route(made, "A", "E")
    assert (found is None) == ("E" not in best)
    if found is not None:
        hops = pairwise(found)
        assert sum(10**18 // (edges[hop] * 10**9) for hop in hops) == best["E"]


# ---- verdicts on the file

GOOD = topology(edge("CPU_DRAM", "A", "1 GB/s"))


def test_a_good_machine_has_no_finding() -> None:
    assert check(machine(*TREE, GOOD)) == []


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        (["Memory A {}", topology(edge("CPU_DRAM", "A", "1 GB/s"), fields="memory: Memory::A, visible: [Memory::B]")],
         ["E6005"]),
        (["Memory A { within: Memory::B }", "Memory B { within: Memory::C }", "Memory C { within: Memory::A }", GOOD],
         ["E6006"]),
        (["Memory A { within: Memory::A }", GOOD], ["E6006"]),
        (["Memory A { capacity: 1 GiB }", "Memory B { within: Memory::A, capacity: 1025 MiB }", GOOD], ["E6007"]),
        (["Memory A { capacity: 1 GiB }", "Memory B { within: Memory::A, capacity: 1 GiB }", GOOD], []),
        (["Memory A { capacity: 0 B, bandwidth: 0 B/s, granule: 0 B }", GOOD], ["E6008"] * 3),
        (["Memory A { scope: sm }", "Memory B { within: Memory::A, scope: device }", GOOD], ["E6011"]),
        (["Memory A { scope: sm }", "Memory B { within: Memory::A, scope: thread }", GOOD], []),
        ([*TREE, topology(edge("CPU_DRAM", "A", "1 GB/s"), edge("A", "B", "9 GB/s"))], ["E6013"]),
        ([*TREE, topology(edge("CPU_DRAM", "A", "1 GB/s"), edge("A", "B", "9"))], ["E6013"]),
        (["Memory A {}", topology(edge("CPU_DRAM", "A", "1 GB/s"), name="GPU")], ["E6016"]),
        (["Memory A {}", topology(edge("CPU_DRAM", "A", "1 GB/s"), name="CPU_Neon")], ["E6016"]),
        (["Memory A {}", "Memory costarring {}", "Memory liquid {}", GOOD], ["E6016"]),
        (["Memory A {}", GOOD, topology(edge("A", "B"), name="declinate"), topology(edge("A", "C"), name="macallums")],
         ["E6016"]),
        (["Memory A {}", topology(edge("A", "B", "1 GB/s"))], ["W1026"]),
        (["Memory A {}", topology(edge("A", "B", "1 GB/s"), fields="memory: Memory::A, visible: [Memory::A, "
          "Memory::CPU_DRAM]")], []),
        (["Memory A {}", topology(edge("CPU_DRAM", "A", "1 GB/s") + " relaxed")], ["W1027"]),
        (["Memory A { managed: cached }", topology(edge("CPU_DRAM", "A", "1 GB/s") + " relaxed")], []),
    ],
)  # fmt: skip
def test_each_incoherent_declaration_has_its_code(lines: list[str], wanted: list[str]) -> None:
    assert codes(machine(*lines)) == wanted


def test_names_of_the_collisions_really_collide() -> None:
    assert fnv1a32("costarring") == fnv1a32("liquid")
    assert fnv1a32("declinate") == fnv1a32("macallums")


def test_a_containment_cycle_is_printed_in_full_at_its_line() -> None:
    made = machine("Memory X {}", "Memory A { within: Memory::B }", "Memory B { within: Memory::A }", GOOD)
    (finding,) = check(made)
    assert "A -> B -> A" in finding.message
    assert finding.line == 2


def test_reading_refuses_on_e_codes_and_warns_on_w_codes() -> None:
    text = "Memory A { scope: device, capacity: 0 B }\n" + topology(edge("B", "A", "1 GB/s"))
    with pytest.raises(DescriptionError) as told:
        vx.read(text, "m.vx")
    assert str(told.value).startswith("m.vx:1:1 E6008: Memory A: capacity is 0")
    assert "W1026" not in str(told.value)
    assert any(told.startswith("W1026: line 2") for told in vx.read(text.replace("0 B", "1 B"), "m.vx").warnings)


def test_a_transfer_over_the_host_needs_a_declared_host() -> None:
    made = machine(*TREE, GOOD)
    assert codes(made) == []
    assert codes(made, transfers=[("CPU_DRAM", "A")]) == ["E6014"]
    hosted = combine(made, machine("Memory CPU_DRAM { bandwidth: 136 GB/s }"))
    assert codes(hosted, transfers=[("CPU_DRAM", "A")]) == []
    assert codes(hosted, transfers=[("A", "CPU_DRAM")]) == ["E6002"]


def test_two_inputs_with_one_name_collide() -> None:
    made = machine(*TREE, GOOD)
    with pytest.raises(DescriptionError) as told:
        combine(made, parse_machine("// host\nMemory A {}\n" + GOOD, "host.vx"))
    assert "host.vx:2:1 E6012: Memory A is declared in two inputs, first at m.vx:1" in str(told.value)
    assert "host.vx:3:1 E6012: Topology T is declared in two inputs, first at m.vx:4" in str(told.value)


# ---- verdicts on tiles

ROOM = "Memory A { capacity: 10 KiB, granule: 1 KiB, scope: device }"


@pytest.mark.parametrize(
    ("tiles", "wanted"),
    [
        ([10 * 1024], []),
        ([10 * 1024 + 1], ["E6009"]),
        ([9 * 1024 + 1], []),
        ([5 * 1024, 5 * 1024], []),
        ([4 * 1024 + 1, 5 * 1024 + 1], ["E6010"]),
        ([1] * 10, []),
        ([1] * 11, ["E6010"]),
        ([11 * 1024, 1], ["E6009", "E6010"]),
        ([None], ["W1029"]),
        ([None, 11 * 1024], ["E6009", "W1029"]),
        ([], []),
    ],
)
def test_tiles_are_rounded_one_by_one_and_then_summed(tiles: list[int | None], wanted: list[str]) -> None:
    assert admit_tiles(machine(ROOM, GOOD), {"A": tiles}) == wanted


def test_overcommit_turns_a_sum_into_a_warning_but_not_a_single_tile() -> None:
    made = machine(ROOM.replace("scope", "overcommit, scope"), GOOD)
    assert admit_tiles(made, {"A": [6 * 1024, 6 * 1024]}) == ["W1028"]
    assert admit_tiles(made, {"A": [11 * 1024]}) == ["E6009"]


def test_a_space_without_capacity_is_not_checked_and_an_unknown_one_is_told() -> None:
    made = machine("Memory A {}", GOOD)
    assert admit_tiles(made, {"A": [2**60, None], "CPU_DRAM": [2**60]}) == []
    assert admit_tiles(made, {"HBM": [1]}) == ["E6025"]


def test_a_missing_route_is_a_finding_beside_the_tiles() -> None:
    made = combine(machine(ROOM, GOOD), machine("Memory CPU_DRAM {}"))
    assert admit_tiles(made, {"A": [1]}, transfers=[("CPU_DRAM", "A"), ("A", "CPU_DRAM")]) == ["E6002"]


def test_an_admitted_placement_records_total_capacity_and_tiles() -> None:
    verdict = admission(machine(ROOM, GOOD), {"A": [1, 1025]})
    assert verdict.admitted
    (use,) = verdict.uses
    assert (use.space, use.tiles, use.total, use.capacity) == ("A", 2, 3 * 1024, 10 * 1024)
    assert not admission(machine(ROOM, GOOD), {"A": [11 * 1024]}).admitted


@given(st.integers(0, 2**40), st.integers(1, 2**20))
def test_rounding_to_the_granule_is_idempotent_and_never_shrinks(nbytes: int, granule: int) -> None:
    once = occupied(nbytes, granule)
    assert nbytes <= once < nbytes + granule
    assert occupied(once, granule) == once
    assert occupied(nbytes, None) == nbytes


@given(st.lists(st.integers(0, 12 * 1024), max_size=5), st.integers(1, 10**6))
def test_more_capacity_never_turns_an_admitted_placement_into_a_refused_one(tiles: list[int], more: int) -> None:
    wider = machine(f"Memory A {{ capacity: {10 * 1024 + more} B, granule: 1 KiB, scope: device }}", GOOD)
    if not admit_tiles(machine(ROOM, GOOD), {"A": tiles}):
        assert not admit_tiles(wider, {"A": tiles})


@pytest.mark.parametrize(
    ("bits", "dims", "nbytes"),
    [
        (32, [2, 3], 24),
        (4, [3], 2),
        (1, [9], 2),
        (16, [], None),
        (8, [2**32, 2**32], None),
        (32, [2**60], None),
        (8, [0], 0),
    ],
)
def test_bytes_of_a_tile(bits: int, dims: list[int], nbytes: int | None) -> None:
    assert tile_bytes(bits, dims) == nbytes
