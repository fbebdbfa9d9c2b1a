"""A plan signed anew is still a lie where it contradicts itself: refused with its path, or `different` when run."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fleet.errors import DescriptionError
from scenarios.compare import compare
from scenarios.documents import read_document
from tests.scenarios.made import check, failed, plan, run_of, signed

Document = dict[str, Any]
Edit = Callable[[Document], Any]
WORDS: list[Document] = [
    {},
    {"attention": "host"},
    {"attention": "host", "kv_extent": "allocated", "fleet": "two-gpu-staged"},
    {"fleet": "two-gpu-staged", "kv_extent": "blocks:3"},
    {"fleet": "one-gpu", "decode": "gpu:0"},
    {"kv_extent": "blocks:64"},
    {"kv_extent": "allocated", "positions": 40},
    {"steps": 3},
    {"steps": 11},
    {"prefill_chunk": 4},
    {"expect": (1, 5, 7)},
    {"prompt": None, "prompt_tokens": 12},
    {"batch": 3},
    {"utilization": "0.0001"},
    {"fleet": "two-gpu-unknown"},
    {"fleet": "two-gpu-tight", "steps": 60},
]


def read(tmp_path: Path, document: Document) -> Document:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(signed(document)))
    return read_document(str(path), ("plan",))


@pytest.mark.parametrize("words", WORDS)
def test_plans_of_the_planner_agree_with_themselves(tmp_path: Path, words: Document) -> None:
    planned = plan(**words)
    assert read(tmp_path, planned) == planned


def memory(**figures: Any) -> Edit:
    return lambda document: document["memory"][0].update(figures)


def work(**words: Any) -> Edit:
    return lambda document: document["orders"]["workload"].update(words)


def asked(**words: Any) -> Edit:
    return lambda document: document["inputs"]["workload"].update(words)


def steps(op: str, **fields: Any) -> Edit:
    return lambda document: [step.update(fields) for step in document["orders"]["steps"] if step["op"] == op]


def without_step(op: str) -> Edit:
    def edit(document: Document) -> None:
        document["orders"]["steps"] = [step for step in document["orders"]["steps"] if step["op"] != op]

    return edit


def twice(op: str) -> Edit:
    def edit(document: Document) -> None:
        found = document["orders"]["steps"]
        index = next(index for index, step in enumerate(found) if step["op"] == op)
        found.insert(index, copy.deepcopy(found[index]))

    return edit


def in_order(*ops: str) -> Edit:
    return lambda document: document["orders"]["steps"].sort(key=lambda step: ops.index(step["op"]))


def reason(severity: str) -> Edit:
    return lambda document: document["reasons"].append({"code": "X", "severity": severity, "message": "m"})


def other_placement(document: Document) -> None:
    document["placement"] = {"prefill": "gpu:1", "decode": "gpu:0"}


def cache_of(document: Document, tensor: str) -> Document:
    buffers = document["orders"]["arenas"][1]["buffers"]
    return next(buffer for buffer in buffers if buffer["name"] == f"kv/decode/{tensor}")


REFUSED: dict[str, tuple[Edit, str]] = {
    "a capacity of one byte": (memory(capacity_bytes=1), "memory[0]"),
    "a budget of one byte": (memory(budget_bytes=1), "memory[0]"),
    "an unknown capacity": (memory(capacity_bytes=None), "memory[0]"),
    "an unknown total": (memory(total_bytes=None), "memory[0]"),
    "an unknown line": (lambda d: d["memory"][0]["resident"].update(weights=None), "memory[0]"),
    "no memory": (lambda d: d.update(memory=[]), "memory"),
    "a device without memory": (lambda d: d["memory"].pop(), "memory"),
    "a device twice": (lambda d: d["memory"].append(d["memory"][0]), "memory"),
    "memory of another device": (memory(device="gpu:7"), "memory"),
    "another topology id": (memory(topology_id=3), "memory[0].topology_id"),
    "another placement": (other_placement, "placement.prefill"),
    "inputs of another placement": (lambda d: d["inputs"]["placement"].update(decode="gpu:0"), "inputs.placement"),
    "a false placement digest": (lambda d: d["inputs"]["placement"].update(digest="0" * 64), "placement.digest"),
    "an error beside admitted": (reason("error"), "verdict"),
    "an unknown beside admitted": (reason("unknown"), "verdict"),
    "refused without a reason": (lambda d: d.update(verdict="refused"), "verdict"),
    "unverified without a reason": (lambda d: d.update(verdict="unverified"), "verdict"),
    "a tokenizer without digest": (lambda d: d["inputs"]["tokenizer"].update(path="tok.bin"), "inputs.tokenizer"),
    "inputs of another extent": (asked(kv_extent="allocated"), "inputs.workload.kv_extent"),
    "inputs of other passes": (asked(passes=25), "inputs.workload.passes"),
    "inputs of another type": (asked(kv_dtype="bf16"), "inputs.workload.kv_dtype"),
    "a false workload digest": (asked(digest="0" * 64), "inputs.workload.digest"),
    "no workload asked": (lambda d: d["inputs"].pop("workload"), "inputs.workload"),
    "a prompt without BOS": (lambda d: d["orders"]["workload"]["prompt_ids"].__setitem__(0, 7), "prompt_ids[0]"),
    "orders of another extent": (work(kv_extent="allocated"), "orders.steps["),
    "orders of other blocks": (work(kv_extent="blocks:4"), "orders.steps["),
    "orders of more positions": (work(positions=48), "shape"),
    "orders of another chunk": (lambda d: d["orders"].update(prefill_chunk=2), "orders.prefill_chunk"),
    "orders of another cache type": (work(kv_dtype="bf16"), "shape"),
    "fewer passes than the steps": (work(passes=11), "orders.steps"),
    "a cache of v unlike k": (lambda d: cache_of(d, "v").update(shape=[5, 25, 32]), "shape"),
    "a handoff of other positions": (steps("handoff", positions=[0, 24]), ".positions"),
    "a handoff of some layers": (steps("handoff", layers=[0, 3]), ".layers"),
    "a handoff by array": (steps("handoff", unit="array"), ".unit"),
    "a handoff by blocks": (steps("handoff", unit="block", block=11), ".unit"),
    "a handoff with a chunk": (steps("handoff", chunk=4), ".chunk"),
    "a handoff within one device": (steps("handoff", mode="local"), ".mode"),
    "a handoff of another layout": (steps("handoff", layout="packed"), ".layout"),
    "a handoff backwards": (steps("handoff", src="gpu:1", dst="gpu:0"), ".src"),
    "k twice and no v": (steps("handoff", tensor="k"), ".tensor"),
    "no handoff": (without_step("handoff"), "orders.steps"),
    "no decode": (without_step("decode"), "orders.steps"),
    "no prefill": (without_step("prefill"), "orders.steps"),
    "no weights": (without_step("stage"), "orders.steps"),
    "a stage twice": (twice("stage"), "orders.steps"),
    "a handoff twice": (twice("handoff"), "orders.steps"),
    "a decode twice": (twice("decode"), "orders.steps"),
    "a handoff before prefill": (in_order("stage", "handoff", "prefill", "decode"), ".op"),
    "stages behind all": (in_order("prefill", "handoff", "decode", "stage"), ".op"),
    "one ordinal for two": (lambda d: d["orders"]["devices"][1].update(index=0), "devices[1].index"),
    "one uuid for two": (lambda d: [e.update(uuid="a") for e in d["orders"]["devices"]], "devices[1].uuid"),
    "a blank uuid": (lambda d: d["orders"]["devices"][0].update(uuid=" "), "devices[0].uuid"),
    "an empty reference": (lambda d: d["orders"].update(expect=[]), "orders.expect"),
    "null inputs": (lambda d: d.update(inputs=None), "inputs"),
    "no passes": (lambda d: d.update(passes=None), "passes"),
    "rows without legs": (lambda d: d["waybill"][0].update(legs=[]), "waybill[0].legs"),
    "a total that is missing": (lambda d: d["memory"][0].pop("total_bytes"), "memory[0].total_bytes"),
}  # fmt: skip


@pytest.mark.parametrize(("edit", "field"), REFUSED.values(), ids=REFUSED)
def test_a_plan_that_contradicts_itself_is_refused_with_its_path(tmp_path: Path, edit: Edit, field: str) -> None:
    planned = plan()
    edit(planned)
    with pytest.raises(DescriptionError) as caught:
        read(tmp_path, planned)
    assert any(field in fault.field for fault in caught.value.faults), caught.value


def test_orders_of_a_plan_that_is_not_admitted_are_refused(tmp_path: Path) -> None:
    refused = plan(utilization="0.0001")
    refused["orders"] = plan()["orders"]
    with pytest.raises(DescriptionError, match="only an admitted one has"):
        read(tmp_path, refused)


def row(tensor: str, **figures: Any) -> Edit:
    return lambda document: next(r for r in document["waybill"] if r["tensor"] == tensor).update(figures)


FALSE: dict[str, tuple[Edit, str]] = {
    "payload of k and v": (
        lambda d: (row("k", payload_bytes=1)(d), row("v", payload_bytes=1)(d), d["handoff"].update(payload_bytes=2)),
        "edges_match",
    ),
    "payload of the ids": (row("tokens", payload_bytes=1), "edges_match"),
    "bytes a pass": (row("tokens", per_pass={"bytes": 99, "copies": 1}), "edges_match"),
    "copies a pass": (row("tokens", per_pass={"bytes": 4, "copies": 9}), "edges_match"),
    "kind of the handoff": (lambda d: d["handoff"].update(kind="d2d"), "edges_match"),
    "seconds of a row": (row("k", seconds=99.0), "edges_match"),
    "seconds of the handoff": (lambda d: d["handoff"].update(seconds=0.0), "edges_match"),
    "lines of the memory": (
        lambda d: d["memory"][0]["resident"].update(
            weights=d["memory"][0]["resident"]["kv_cache"], kv_cache=d["memory"][0]["resident"]["weights"]
        ),
        "resident_match",
    ),
}


@pytest.mark.parametrize(("edit", "name"), FALSE.values(), ids=FALSE)
def test_a_false_prediction_is_different_when_it_is_run(tmp_path: Path, edit: Edit, name: str) -> None:
    planned = plan()
    run = run_of(planned)
    assert failed(compare(planned, run)) == set()
    edit(planned)
    comparison = compare(read(tmp_path, planned), run)
    assert failed(comparison) == {name}
    assert comparison["verdict"] == "different"


@pytest.mark.parametrize("words", [words for words in WORDS if "prompt" not in words])
def test_predictions_of_the_planner_are_not_called_false(words: Document) -> None:
    planned = plan(**words)
    if planned["verdict"] == "admitted" and not words.get("batch"):
        comparison = compare(planned, run_of(planned))
        results = {name: check(comparison, name)["result"] for name in ("edges_match", "resident_match")}
        assert results == {"edges_match": "passed", "resident_match": "passed"}


class TestOrdersUnchanged:
    def finding(self, edit: Edit) -> Document:
        second = plan()
        edit(second)
        return check(compare(plan(), second), "orders_unchanged")

    @pytest.mark.parametrize(
        ("edit", "told"),
        [
            (lambda d: d["orders"]["fences"][0].update(bytes=8), "fences gpu:0 bytes"),
            (lambda d: cache_of(d, "k").update(shape=[5, 25, 32]), "arena gpu:1 kv/decode/k"),
            (lambda d: d["orders"]["arenas"][0]["buffers"].reverse(), "another order"),
            (steps("handoff", mode="staged"), "(handoff) mode: direct -> staged"),
            (without_step("handoff"), "steps -> "),
            (work(prefill_chunk=4), "workload prefill_chunk: 1 -> 4"),
            (lambda d: d["orders"]["devices"][0].update(topology_id=9), "devices gpu:0 topology_id"),
            (lambda d: d.update(orders=None), "there -> absent"),
        ],
    )
    def test_another_order_is_different(self, edit: Edit, told: str) -> None:
        finding = self.finding(edit)
        assert (finding["result"], finding["required"]) == ("failed", True)
        assert told in finding["detail"]

    def test_another_prompt_of_as_many_ids_is_told(self) -> None:
        finding = self.finding(lambda d: d["orders"]["workload"]["prompt_ids"].__setitem__(5, 9))
        assert finding["result"] == "passed"
        assert "other prompt ids" in finding["detail"]

    def test_two_runs_have_no_orders(self) -> None:
        run = run_of(plan())
        assert check(compare(run, run), "orders_unchanged")["result"] == "waived"
