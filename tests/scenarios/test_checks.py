"""Each check both ways: it passes on a faultless run, and one edit makes exactly it fail (or untold)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from scenarios.case import Proof
from scenarios.checks import MEASURED, PROVED
from scenarios.compare import compare
from tests.scenarios.made import check, clean_run, edges_of, failed, plan

Document = dict[str, Any]
Edit = Callable[[Document], None]


def other_tokens(run: Document) -> Document:
    """The run with every chosen token after the first, and every later logit, changed."""
    run = copy.deepcopy(run)
    run["generated_tokens"][1:] = [token + 1 for token in run["generated_tokens"][1:]]
    run["tokens"][-len(run["generated_tokens"]) + 1 :] = run["generated_tokens"][1:]
    run["logits_top1_bits"][1:] = [f"{int(bits, 16) + 1:08x}" for bits in run["logits_top1_bits"][1:]]
    return run


def proof_of(run: Document) -> Proof:
    return Proof(
        single_device=copy.deepcopy(run),
        without_handoff={memory: other_tokens(run) for memory in ("poisoned", "zeroed")},
        lost={
            "decode cache": other_tokens(run),
            "decode weights": other_tokens(run),
            "prefill cache": copy.deepcopy(run),
        },
    )


def untold_in(comparison: Document) -> set[str]:
    """Required checks that are inconclusive."""
    return {c["name"] for c in comparison["checks"] if c["result"] == "inconclusive" and c["required"]}


def extra_op(run: Document) -> None:
    run["program"]["decode"].insert(3, {"op": "matmul", "layer": 0, "tensor": "wk", "shape": [64, 64]})


def other_shape(run: Document) -> None:
    run["program"]["decode"][2]["shape"] = [64, 65]


def decode_op_missing(run: Document) -> None:
    del run["program"]["decode"][4]


def one_dispatch_short(run: Document) -> None:
    run["dispatches"][1]["count"] -= 1


def prefill_short(run: Document) -> None:
    run["dispatches"][0]["count"] -= 1


def a_pass_less(run: Document) -> None:
    run["passes"]["prefill"] -= 1


def no_decode_dispatch(run: Document) -> None:
    del run["dispatches"][1]


def stray_in_the_middle(run: Document) -> None:
    whole = run["dispatches"][1]
    stray = run["dispatches"][0] | {"phase": "decode", "count": 1, "first_step": 20, "last_step": 20}
    first = whole | {"count": 10, "last_step": 20}
    rest = whole | {"count": whole["count"] - 11, "first_step": 20}
    run["dispatches"][1:] = [first, stray, rest]


def all_on_device_0(run: Document) -> None:
    run["dispatches"][1] |= {key: run["dispatches"][0][key] for key in ("device", "topology_id", "ordinal")}


def wrong_topology_id(run: Document) -> None:
    run["dispatches"][1]["topology_id"] = 500


def decode_before_prefill(run: Document) -> None:
    run["dispatches"].reverse()


def steps_overlap(run: Document) -> None:
    run["dispatches"][1]["first_step"] = run["dispatches"][0]["last_step"]


def prefill_with_one_on_decode_device(run: Document) -> None:
    stray = run["dispatches"][1] | {"phase": "prefill", "count": 1}
    run["dispatches"][0]["count"] -= 1
    run["dispatches"].insert(1, stray)


def one_byte_of_tokens(run: Document) -> None:
    row = next(row for row in run["waybill"] if row["tensor"] == "tokens")
    for part in (row, *row["legs"]):
        part["bytes"] += 1
    run["edges"] = edges_of(run["waybill"])


def edges_that_do_not_add_up(run: Document) -> None:
    run["edges"][0]["copies"] += 1


def k_and_v_swapped(run: Document) -> None:
    k, v = run["arrivals"][0], run["arrivals"][len(run["arrivals"]) // 2]
    k["digest_dst"], v["digest_dst"] = v["digest_dst"], k["digest_dst"]


def a_layer_without_digest(run: Document) -> None:
    run["arrivals"].pop()


def a_layer_twice(run: Document) -> None:
    run["arrivals"][1] = dict(run["arrivals"][0])
    run["arrivals"].append(dict(run["arrivals"][0]))


def a_digest_too_many(run: Document) -> None:
    run["arrivals"].append(run["arrivals"][-1] | {"layer": 99})


def one_allocation_more(run: Document) -> None:
    run["resident"][1]["high_water_bytes"] += 4


def an_arena_that_nobody_planned(run: Document) -> None:
    run["resident"].append({"device": "host:spare", "high_water_bytes": 64})


def a_stray_read(run: Document) -> None:
    run["stray"] = {"accesses": 1, "detail": "decode read gpu:0 at pass 41"}


EDITS: dict[str, tuple[Edit, str]] = {
    edit.__name__: (edit, name)
    for edit, name in [
        (extra_op, "one_program_text"),
        (other_shape, "one_program_text"),
        (decode_op_missing, "one_program_text"),
        (prefill_short, "dispatches_match"),
        (a_pass_less, "dispatches_match"),
        (stray_in_the_middle, "device_switch_at_phase_boundary"),
        (all_on_device_0, "device_switch_at_phase_boundary"),
        (wrong_topology_id, "device_switch_at_phase_boundary"),
        (decode_before_prefill, "device_switch_at_phase_boundary"),
        (steps_overlap, "device_switch_at_phase_boundary"),
        (prefill_with_one_on_decode_device, "device_switch_at_phase_boundary"),
        (one_byte_of_tokens, "edges_match"),
        (edges_that_do_not_add_up, "edges_match"),
        (k_and_v_swapped, "kv_content_arrived"),
        (a_layer_without_digest, "kv_content_arrived"),
        (a_layer_twice, "kv_content_arrived"),
        (a_digest_too_many, "kv_content_arrived"),
        (one_allocation_more, "resident_match"),
        (an_arena_that_nobody_planned, "resident_match"),
        (a_stray_read, "no_stray_access"),
    ]
}


@pytest.mark.parametrize(("edit", "name"), EDITS.values(), ids=EDITS)
def test_one_edit_makes_exactly_its_check_fail(edit: Edit, name: str) -> None:
    planned = plan()
    run = clean_run(planned)
    proof = proof_of(run)
    clean = compare(planned, run, proof=proof)
    assert clean["verdict"] == "equal", clean["checks"]
    assert check(clean, name)["result"] == "passed"
    edit(run)
    sabotaged = compare(planned, run, proof=proof)
    # Some edits leave the run in contradiction with itself, which is a check of its own.
    assert failed(sabotaged) - {"run_agrees_with_itself"} == {name}
    assert sabotaged["verdict"] == "different"
    assert check(sabotaged, name)["detail"]


def test_no_decode_dispatch_at_all_fails_dispatch_and_switch() -> None:
    planned = plan()
    run = clean_run(planned)
    no_decode_dispatch(run)
    assert failed(compare(planned, run)) == {
        "decode_dispatched",
        "dispatches_match",
        "device_switch_at_phase_boundary",
    }


def test_one_decode_dispatch_too_few_fails_both_counts_and_nothing_else() -> None:
    planned = plan()
    run = clean_run(planned)
    one_dispatch_short(run)
    assert failed(compare(planned, run)) == {"decode_dispatched", "dispatches_match", "run_agrees_with_itself"}


@pytest.mark.parametrize("field", ["total_bytes", "slack_bytes", "rounding_bytes", "budget_bytes"])
def test_a_memory_table_that_does_not_add_up_fails_resident_match(field: str) -> None:
    planned = plan()
    run = clean_run(planned)
    planned["memory"][1][field] += 4
    assert failed(compare(planned, run)) == {"resident_match"}


def test_a_fence_that_is_not_total_less_runtime_fails_resident_match() -> None:
    planned = plan()
    run = clean_run(planned)
    planned["orders"]["fences"][0]["bytes"] += 4
    assert failed(compare(planned, run)) == {"resident_match"}


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("figure", ["passes", "dispatches"])
def test_a_falsified_count_of_work_is_different(phase: str, figure: str) -> None:
    planned = plan()
    run = clean_run(planned)
    planned[figure][phase] += 1
    assert "dispatches_match" in failed(compare(planned, run))


def test_every_check_is_there_once_and_in_order() -> None:
    planned = plan()
    run = clean_run(planned)
    names = [entry["name"] for entry in compare(planned, run, proof=proof_of(run))["checks"]]
    assert names == [*MEASURED, *PROVED]
    assert [entry["name"] for entry in compare(planned, run)["checks"]] == list(MEASURED)


def test_handoff_bytes_match_fails_alone_when_only_the_plans_handoff_is_false() -> None:
    planned = plan()
    run = clean_run(planned)
    planned["handoff"]["copies"] += 1
    assert failed(compare(planned, run)) == {"handoff_bytes_match", "edges_match"}


def test_handoff_bytes_match_fails_on_what_the_witness_saw() -> None:
    planned = plan()
    run = clean_run(planned)
    next(row for row in run["waybill"] if row["tensor"] == "v")["legs"][0]["observed_bytes"] = 0
    assert failed(compare(planned, run)) == {"handoff_bytes_match", "edges_match"}


def test_a_stage_row_that_nobody_saw_leaves_edges_untold() -> None:
    planned = plan()
    run = clean_run(planned)
    run["waybill"][0]["legs"][0] |= {"observed_bytes": None, "witness": "none"}
    comparison = compare(planned, run)
    assert check(comparison, "edges_match")["result"] == "inconclusive"
    assert comparison["verdict"] == "inconclusive"


def test_a_run_without_any_witness_is_inconclusive_never_equal() -> None:
    planned = plan()
    run = clean_run(planned)
    for row in run["waybill"]:
        for leg in row["legs"]:
            leg |= {"observed_bytes": None, "witness": "none"}
    run |= {"arrivals": [], "resident": []}
    comparison = compare(planned, run)
    assert comparison["verdict"] == "inconclusive"
    untold = {
        entry["name"] for entry in comparison["checks"] if entry["result"] == "inconclusive" and entry["required"]
    }
    assert untold == {"edges_match", "handoff_bytes_match", "kv_content_arrived", "resident_match"}


def test_digests_that_are_all_alike_tell_nothing() -> None:
    planned = plan()
    run = clean_run(planned)
    for entry in run["arrivals"]:
        entry |= {"digest_src": "00", "digest_dst": "00"}
    assert check(compare(planned, run), "kv_content_arrived")["result"] == "inconclusive"


def test_a_classifier_that_prefill_was_not_asked_for_is_set_aside() -> None:
    planned = plan()
    run = clean_run(planned)
    run["program"]["prefill"].pop()
    finding = check(compare(planned, run), "one_program_text")
    assert finding["result"] == "passed"
    assert "1 operations of a classifier" in finding["detail"]
    run["program"]["prefill"].pop()
    assert check(compare(planned, run), "one_program_text")["result"] == "failed"


NO_DECODE = {
    "one_program_text",
    "decode_dispatched",
    "device_switch_at_phase_boundary",
    "handoff_bytes_match",
    "kv_content_arrived",
    "handoff_is_load_bearing",
    "decode_uses_its_own_memory",
}


@pytest.mark.parametrize("steps", [3, 5])
def test_without_decode_passes_the_split_checks_are_inconclusive(steps: int) -> None:
    planned = plan(steps=steps)
    run = clean_run(planned)
    assert planned["passes"]["decode"] == 0
    comparison = compare(planned, run, proof=proof_of(run))
    untold = {
        entry["name"] for entry in comparison["checks"] if entry["result"] == "inconclusive" and entry["required"]
    }
    assert untold == NO_DECODE
    assert comparison["verdict"] == "inconclusive"


def test_the_oracle_waives_what_needs_two_devices() -> None:
    planned = plan(fleet="one-gpu", decode="gpu:0")
    run = clean_run(planned)
    comparison = compare(planned, run, proof=proof_of(run))
    waived = {entry["name"] for entry in comparison["checks"] if entry["result"] == "waived"}
    assert waived == {
        "device_switch_at_phase_boundary",
        "same_inputs",
        "two_physical_devices",
        "tokens_equal_reference",
        "tokens_equal_single_device",
        "no_stray_access",
    }
    assert not any(entry["required"] for entry in comparison["checks"] if entry["result"] == "waived")
    assert comparison["verdict"] == "equal"


def test_the_oracle_with_attention_on_the_host_has_arenas_to_close() -> None:
    planned = plan(fleet="one-gpu", decode="gpu:0", attention="host")
    run = clean_run(planned)
    assert check(compare(planned, run, proof=proof_of(run)), "no_stray_access")["result"] == "passed"


class TestReference:
    def expecting(self, planned: Document, run: Document, expect: list[int]) -> Document:
        orders = planned["orders"] | {"expect": expect}
        return check(compare(planned | {"orders": orders}, run), "tokens_equal_reference")

    def test_whole_prefix_longer_and_other(self) -> None:
        planned = plan()
        run = clean_run(planned)
        tokens = run["tokens"]
        assert self.expecting(planned, run, tokens)["result"] == "passed"
        assert self.expecting(planned, run, tokens[:4])["result"] == "passed"
        assert self.expecting(planned, run, [*tokens, 5])["result"] == "failed"
        assert self.expecting(planned, run, [*tokens[:-1], tokens[-1] + 1])["detail"].startswith("1 of")


class TestPhysicalDevices:
    def finding(self, first: Document, second: Document, **words: Any) -> Document:
        planned = plan(**words)
        physical = [
            {"device": planned["orders"][phase], "ordinal": 0, "uuid": None, "pci": None, "name": None} | identity
            for phase, identity in (("prefill", first), ("decode", second))
        ]
        run = clean_run(planned) | {"tier": "on-device", "physical_devices": physical}
        return check(compare(planned, run), "two_physical_devices")

    def test_two_uuids_pass(self) -> None:
        finding = self.finding({"uuid": "GPU-a", "pci": "0:1"}, {"uuid": "GPU-b", "pci": "0:2"})
        assert (finding["result"], finding["required"]) == ("passed", True)

    def test_one_uuid_or_one_pci_address_fails(self) -> None:
        assert self.finding({"uuid": "GPU-a"}, {"uuid": "GPU-a"})["result"] == "failed"
        assert self.finding({"uuid": "MIG-a", "pci": "0:1"}, {"uuid": "MIG-b", "pci": "0:1"})["result"] == "failed"

    def test_ordinals_alone_prove_nothing(self) -> None:
        finding = self.finding({"ordinal": 0}, {"ordinal": 1})
        assert (finding["result"], finding["required"]) == ("inconclusive", True)

    def test_one_gpu_and_one_cpu_is_a_claim_of_its_own(self) -> None:
        finding = self.finding({}, {}, fleet="gpu-and-cpu", decode="cpu:0")
        assert (finding["result"], finding["detail"]) == ("passed", "one GPU and one CPU")

    def test_emulated_is_inconclusive_and_not_required(self) -> None:
        planned = plan()
        finding = check(compare(planned, clean_run(planned)), "two_physical_devices")
        assert (finding["result"], finding["required"]) == ("inconclusive", False)


class TestProof:
    def finding(self, name: str, proof: Proof, **changes: Any) -> Document:
        planned = plan()
        return check(compare(planned, clean_run(planned) | changes, proof=proof), name)

    def test_other_tokens_or_bits_on_a_single_device_fail(self) -> None:
        run = clean_run(plan())
        bits = copy.deepcopy(run)
        bits["logits_top1_bits"][-1] = "deadbeef"
        for single in (other_tokens(run), bits):
            proof = Proof(single_device=single, without_handoff=proof_of(run).without_handoff)
            assert self.finding("tokens_equal_single_device", proof)["result"] == "failed"

    def test_a_handoff_that_can_be_deleted_unnoticed_fails(self) -> None:
        run = clean_run(plan())
        for memory in ("poisoned", "zeroed"):
            proof = Proof(
                single_device=run, without_handoff=dict(proof_of(run).without_handoff) | {memory: copy.deepcopy(run)}
            )
            finding = self.finding("handoff_is_load_bearing", proof)
            assert finding["result"] == "failed"
            assert f"{memory} memory: 0 of {len(run['generated_tokens'])} tokens" in finding["detail"]

    def test_bits_that_change_without_a_token_are_not_enough(self) -> None:
        run = clean_run(plan())
        bits = copy.deepcopy(run)
        bits["logits_top1_bits"] = ["00000000"] * len(bits["logits_top1_bits"])
        proof = Proof(single_device=run, without_handoff={"poisoned": bits, "zeroed": bits})
        assert self.finding("handoff_is_load_bearing", proof)["result"] == "inconclusive"

    def test_runs_that_were_not_made_leave_the_proof_untold(self) -> None:
        for name in ("tokens_equal_single_device", "handoff_is_load_bearing"):
            finding = self.finding(name, Proof())
            assert (finding["result"], finding["required"]) == ("inconclusive", True)
        assert self.finding("no_stray_access", Proof(), stray=None)["result"] == "inconclusive"

    def test_stray_access_is_waived_where_memory_cannot_be_locked(self) -> None:
        assert self.finding("no_stray_access", Proof(), backend="cupy")["result"] == "waived"

    def test_changed_tokens_are_counted_in_words(self) -> None:
        run = clean_run(plan())
        n = len(run["generated_tokens"])
        detail = self.finding("handoff_is_load_bearing", proof_of(run))["detail"]
        assert f"poisoned memory: {n - 1} of {n} tokens" in detail
        assert f"zeroed memory: {n - 1} of {n} tokens" in detail
