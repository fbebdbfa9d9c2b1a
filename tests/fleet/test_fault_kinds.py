"""The 25 kinds of faults of a fleet file, each with the behaviour stated for it and the tests that show it.

`KINDS` is the table; a test below holds that every test it names is there. Kinds that had none are tested here.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from fleet.errors import DescriptionError
from fleet.load import load_fleet
from fleet.placement import Placement
from planner.admit import Ask, admit
from planner.plan import row_document
from planner.request import Request
from tests.command_line import Ask as Command
from tests.command_line import Document, asker, fleet, link, without, write_json
from tests.fleet_texts import SMALL
from tests.planner.fleets import llama2c

ROOT = Path(__file__).parents[1]
CASES = "fleet/test_fleet_faults.py::test_tells_one_fault_at_its_place_with_its_field_and_how_to_mend_it"
FILES, HERE = "fleet/test_fleet_files.py::test_", "fleet/test_fault_kinds.py::test_"
PARTS, HOSTILE = "fleet/test_fleet_templates.py::test_", "fleet/test_fleet_hostile.py::test_"
ADMIT = "planner/test_admission.py::test_"

KINDS: dict[int, tuple[str, list[str]]] = {
    1: ("one id, name or key twice: error naming both lines", [CASES]),
    2: ("dangling end: error with the nearest id", [CASES, f"{HERE}a_dangling_end_makes_no_node"]),
    3: ("rate 0, negative, not finite: error", [CASES]),
    4: (
        "GB against GiB, bits",
        [
            CASES,
            "fleet/test_units.py::test_refuses_a_size_that_is_not_written_exactly_and_says_how",
            f"{FILES}what_is_legal_but_odd_is_warned_of",
            f"{FILES}network_links_may_count_bits",
        ],
    ),
    5: ("no unit, or no number: error", [CASES, f"{FILES}words_that_yaml_takes_for_numbers_stay_text"]),
    6: (
        "one-way links: legal, warned of, refused where the other way is needed",
        [
            f"{FILES}bidirectional_makes_two_links_and_a_plain_link_stays_one_way",
            f"{FILES}what_is_legal_but_odd_is_warned_of",
            f"{ADMIT}every_missing_host_link_is_a_refusal_by_name",
        ],
    ),
    7: (
        "link to itself: error; in NCCL XML dropped and told",
        [
            CASES,
            "fleet/test_reader_nccl_xml.py::test_a_link_to_itself_is_dropped_and_an_empty_speed_is_unknown",
        ],
    ),
    8: (
        "YAML's traps, bombs, size: refused in time and memory",
        [
            CASES,
            f"{HOSTILE}a_billion_laughs_are_refused_at_the_first_alias_and_not_expanded",
            f"{HOSTILE}a_tag_runs_nothing",
            f"{HOSTILE}too_many_values_are_refused",
            f"{HERE}bombs_are_refused_in_time_and_memory",
        ],
    ),
    9: ("unknown key: error with a suggestion; x- is free", [CASES, f"{FILES}a_note_may_stand_anywhere"]),
    10: (
        "10,000 devices: seconds, never all pairs",
        [
            f"{PARTS}ten_thousand_gpus_load_from_fewer_than_sixty_lines",
            "fleet/test_fleet_laws.py::test_a_thousand_devices_load_whole",
        ],
    ),
    11: (
        "names: ASCII ids, free labels, one normal form, case",
        [
            CASES,
            f"{FILES}labels_are_kept_in_one_normal_form",
            f"{FILES}what_is_legal_but_odd_is_warned_of",
        ],
    ),
    12: (
        "islands: legal, warned of; a plan across is refused with both",
        [
            f"{FILES}what_is_legal_but_odd_is_warned_of",
            f"{HERE}a_plan_across_two_islands_lists_both",
        ],
    ),
    13: (
        "within: cycle, no parent, too large, too broad",
        [
            f"{PARTS}a_cycle_of_memories_is_told_once_and_in_full",
            f"{PARTS}a_memory_that_cannot_lie_where_it_is_put_is_told",
            f"{PARTS}a_child_as_large_as_its_parent_is_fine",
        ],
    ),
    14: (
        "default memory; shared memory only when said, counted once",
        [
            CASES,
            f"{PARTS}two_devices_that_claim_one_memory_must_both_say_that_it_is_shared",
            f"{PARTS}shared_memory_is_counted_once",
            "planner/test_shared_memory.py::test_two_devices_in_one_memory_are_refused_when_only_each_by_itself_fits",
        ],
    ),
    15: (
        "beyond 2^63-1: error for a figure, exact and refused for sums",
        [
            CASES,
            f"{PARTS}capacities_that_pass_63_bits_together_are_exact_and_warned_of",
            f"{ADMIT}totals_beyond_63_bits_are_refused_not_wrapped",
            f"{HERE}a_figure_of_64_bits_in_a_machine_file_is_refused",
        ],
    ),
    16: (
        "weight without unit (Vx): time unknown, unpriced",
        [
            "fleet/test_reader_vx_rules.py::test_a_weight_is_no_time",
            f"{HERE}a_plan_over_a_weight_is_unpriced_and_not_free",
        ],
    ),
    17: (
        "capacity unknown: loads, unverified, code 3",
        [
            f"{FILES}an_unknown_capacity_loads_and_is_none",
            f"{ADMIT}unknown_capacity_is_never_admitted",
            f"{HERE}an_unknown_capacity_is_code_3",
        ],
    ),
    18: ("index outside 0..99, no whole number, or twice: error", [CASES]),
    19: (
        "rate above the kind's: warning; strict: error",
        [
            f"{FILES}nvlink_of_a_hopper_card_at_the_rate_of_both_directions_is_warned_of",
            f"{HERE}a_rate_above_its_kind_is_an_error_when_strict",
        ],
    ),
    20: (
        "observed above declared: kept, warned of",
        [
            f"{FILES}an_observation_above_the_declared_figure_is_kept_and_warned_of",
            f"{ADMIT}observed_figures_do_not_change_a_plan",
        ],
    ),
    21: (
        "bytes, BOM, CRLF, tabs, empty, folder, loop: one clear fault",
        [
            CASES,
            f"{HOSTILE}a_file_that_is_no_readable_yaml_is_one_clear_fault",
            f"{HOSTILE}paths_that_cannot_be_read_are_one_clear_fault_each",
            f"{FILES}a_bom_and_windows_line_ends_change_nothing",
        ],
    ),
    22: (
        "slices: own capacity, together no more than the card, peers unknown",
        [
            f"{PARTS}slices_may_fill_their_card_and_no_more",
            f"{PARTS}slices_have_the_links_of_their_card_and_their_peers_are_unknown",
            "planner/test_shared_memory.py::test_a_card_and_its_slice_are_not_both_filled",
        ],
    ),
    23: (
        "XML with DTD or entities, huge, wrong root: refused before expansion",
        [
            "fleet/test_reader_nccl_xml.py::test_nested_entities_are_refused_before_they_grow",
            "fleet/test_reader_nccl_xml.py::test_what_is_wrong_is_told",
            "fleet/test_reader_hwloc_xml.py::test_what_is_wrong_is_told",
            "fleet/test_readers.py::test_a_text_beyond_the_limit_is_refused_unread",
        ],
    ),
    24: (
        "pinned pool: chunks, or a refusal",
        [
            f"{ADMIT}staging_is_cut_to_the_pinned_pool",
            "scenarios/test_commands_fixes.py::test_the_fix_of_every_kind_of_refusal_is_admitted",
        ],
    ),
    25: (
        "latency missing: a lower bound, printed so",
        [
            f"{FILES}a_missing_latency_is_unknown_and_not_zero",
            f"{HERE}a_time_without_latency_is_printed_as_a_lower_bound",
        ],
    ),
}


def test_all_25_kinds_are_in_the_table_and_every_test_it_names_exists() -> None:
    assert sorted(KINDS) == list(range(1, 26))
    for number, (_, tests) in KINDS.items():
        assert tests, number
        for name in tests:
            file, _, function = name.partition("::")
            tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
            assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, name


@pytest.fixture
def ask(capfd: pytest.CaptureFixture[str]) -> Command:
    return asker(capfd)


ASKED = ("--prompt-tokens", "6", "--steps", "12")


def test_a_dangling_end_makes_no_node() -> None:
    with pytest.raises(DescriptionError) as told:
        load_fleet("s", text=SMALL + "  - {from: gpu:0, to: gpu:9, kind: pcie}\n")
    [fault] = told.value.faults
    assert fault.field == "links[2].to"
    assert "did you mean gpu:" in fault.message


_BOMB = """
import resource, sys
from fleet.errors import DescriptionError
from fleet.load import load_fleet
from tests.work import counted
def told(text):
    try:
        load_fleet("s", text=text)
        return "read"
    except DescriptionError:
        return None
told("zork: 1")
base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for text in (
    "schema: kvwaybill/fleet/1\\na: &a [x, x]\\nb: &b [*a, *a]\\nc: [*b, *b]\\n",
    "schema: kvwaybill/fleet/1\\nname: " + "[" * 100_000,
    "schema: kvwaybill/fleet/1\\nname: x\\n# " + "y" * (17 * 2**20),
):
    read, calls = counted(lambda: told(text))
    assert not read
    assert calls < 10_000_000, calls
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base
assert grown < 200 * 1024, grown
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of memory is read in KiB, as Linux gives it")
def test_bombs_are_refused_in_time_and_memory() -> None:
    done = subprocess.run([sys.executable, "-c", _BOMB], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_plan_across_two_islands_lists_both(tmp_path: Path, ask: Command) -> None:
    ways = [(a, b) for a in ("host", "gpu:0") for b in ("gpu:1", "gpu:2")]
    described = without(fleet(["64 MiB"] * 3), *ways, *((b, a) for a, b in ways))
    path = write_json(tmp_path / "islands.yaml", described)
    loaded = load_fleet(str(path))
    assert any("2 groups without links between them" in told for told in loaded.warnings)
    answer = ask("admit", "--fleet", path, *ASKED, "-o", "json")
    assert answer.code == 1
    told = {reason["edge"]: reason["message"] for reason in answer.document["reasons"]}
    assert "no declared links lead from gpu:0 to gpu:1" in told["gpu:0->gpu:1"]
    assert "falls apart there: gpu:0, host | gpu:1, gpu:2" in told["gpu:0->gpu:1"]


def test_a_figure_of_64_bits_in_a_machine_file_is_refused() -> None:
    text = "Memory A { capacity: 8192 PiB, scope: device }\nTopology T { memory: Memory::A }\n"
    with pytest.raises(DescriptionError, match=r"capacity of Memory A is beyond 2\^63-1"):
        load_fleet("m.vx", text=text)


def test_a_plan_over_a_weight_is_unpriced_and_not_free() -> None:
    text = """Memory A { capacity: 80 GiB, scope: device }
Memory B { capacity: 80 GiB, scope: device }
Topology T { memory: Memory::A, visible: [Memory::A, Memory::B],
  transfer Memory::CPU_DRAM -> Memory::A : 63 GB/s, transfer Memory::A -> Memory::B : 300 }
"""
    loaded = load_fleet("m.vx", text=text)
    request, placement = Request(prompt_tokens=14, steps=40), Placement(prefill="gpu:0", decode="gpu:1")
    prediction = admit(Ask(fleet=loaded, model=llama2c(), request=request, placement=placement)).prediction
    assert prediction is not None
    rows = [row_document(row) for row in prediction.handoff_rows]
    assert [(row["legs"][0]["link"], row["seconds"]) for row in rows] == [("pcie", None)] * 2
    assert prediction.handoff_seconds is None


def test_an_unknown_capacity_is_code_3(tmp_path: Path, ask: Command) -> None:
    path = write_json(tmp_path / "f.yaml", fleet("unknown"))
    answer = ask("admit", "--fleet", path, *ASKED, "-o", "json")
    assert (answer.code, answer.document["verdict"]) == (3, "unverified")


def fast() -> Document:
    """A Hopper pair that declares the rate of both directions as that of one."""
    described = fleet(peer=None)
    described["skus"]["card"]["arch"] = "hopper"
    row = link("gpu:0", "gpu:1", kind="nvlink", count="18", bandwidth="900 GB/s", peer_access="direct")
    return described | {"links": [*described["links"], row]}


def test_a_rate_above_its_kind_is_an_error_when_strict(tmp_path: Path, ask: Command) -> None:
    path = write_json(tmp_path / "fast.yaml", fast())
    assert ask("fleet", "check", path).code == 0
    for command in (("fleet", "check", path), ("admit", "--fleet", path, *ASKED)):
        answer = ask(*command, "--strict")
        assert answer.code == 2
        assert "looks like a both-directions figure" in answer.err
        assert f"{path}:" in answer.err
    [fault] = ask("fleet", "check", path, "--strict", "-o", "json").document["faults"]
    assert fault["line"] > 0
    right = fast()
    right["links"][-1]["bandwidth"] = "450 GB/s"
    assert ask("fleet", "check", write_json(tmp_path / "right.yaml", right), "--strict").code == 0


def test_a_time_without_latency_is_printed_as_a_lower_bound(tmp_path: Path, ask: Command) -> None:
    described = fleet()
    for row in described["links"]:
        del row["latency"]
    path = write_json(tmp_path / "f.yaml", described)
    answer = ask("admit", "--fleet", path, *ASKED)
    assert answer.code == 0
    handoff = next(line for line in answer.out.splitlines() if line.startswith("Handoff"))
    assert ">= " in handoff
    plan = ask("admit", "--fleet", path, *ASKED, "-o", "json").document
    assert plan["handoff"]["lower_bound"] is True
    assert "bandwidth only" in plan["time"]["basis"]
