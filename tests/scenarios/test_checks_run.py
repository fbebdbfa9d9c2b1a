"""A run that contradicts itself, or the orders that it says it carried out, is different; each way is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fleet.errors import DescriptionError
from scenarios.compare import compare
from scenarios.documents import read_document
from tests.scenarios.made import check, clean_run, failed, plan, run_of, sha256

Document = dict[str, Any]
Edit = Callable[[Document], Any]


def each(rows: list[Document], **changes: Any) -> None:
    for row in rows:
        row.update(changes)


def rows_saying(**figures: Any) -> Edit:
    return lambda run: each(run["waybill"], **figures)


def legs_saying(**figures: Any) -> Edit:
    return lambda run: each([leg for row in run["waybill"] for leg in row["legs"]], **figures)


def set_steps(index: int, first: int, last: int) -> Edit:
    return lambda run: run["dispatches"][index].update(first_step=first, last_step=last)


def no_matmuls(run: Document) -> None:
    for phase in ("prefill", "decode"):
        run["program"][phase] = [op for op in run["program"][phase] if op["op"] != "matmul"]


def another_prompt_of_the_same_name(run: Document) -> None:
    run["inputs"] = {"workload": {"digest": plan()["inputs"]["workload"]["digest"]}}
    run["tokens"][3] += 1


def bos_in_the_middle(run: Document) -> None:
    run["tokens"][-3] = run["generated_tokens"][-3] = 1


def text_beside_another_hex(run: Document) -> None:
    run |= {"text": "carried", "text_hex": b"lost".hex()}


EDITS: dict[str, tuple[Edit, str]] = {
    "no tokens": (lambda run: run.update(tokens=[]), "not with BOS"),
    "one token less": (lambda run: run["tokens"].pop(), "a walk has one more than its passes"),
    "no chosen ids": (lambda run: run.update(generated_tokens=[]), "not the tokens behind"),
    "other chosen ids": (lambda run: run["generated_tokens"].reverse(), "not the tokens behind"),
    "another P": (lambda run: run.update(n_prompt_tokens=2), "n_prompt_tokens is 2"),
    "an id of another vocabulary": (
        lambda run: (run["tokens"].__setitem__(-1, 259), run["generated_tokens"].__setitem__(-1, 259)),
        "id 259 is outside the vocabulary of 259",
    ),
    "another prompt under the plan's digest": (another_prompt_of_the_same_name, "walked another prompt"),
    "a pass more": (lambda run: run["passes"].update(decode=run["passes"]["decode"] + 1), "a walk has one more"),
    "bos without a BOS": (lambda run: run.update(stopped="bos"), "stopped is bos"),
    "a BOS in the middle": (bos_in_the_middle, "the walk goes on behind the BOS"),
    "no logits": (lambda run: run.update(logits_top1_bits=[]), "0 top logits"),
    "one logit too many": (lambda run: run["logits_top1_bits"].append("00000000"), "top logits"),
    "another text": (text_beside_another_hex, "different texts"),
    "attention of another plan": (lambda run: run.update(settings={"attention": "host"}), "settings.attention"),
    "extent of another plan": (lambda run: run.update(settings={"kv_extent": "blocks:4"}), "settings.kv_extent"),
    "layout of another plan": (lambda run: run.update(settings={"layout": "packed"}), "settings.layout"),
    "positions of another plan": (lambda run: run.update(settings={"positions": 4096}), "settings.positions"),
    "a handoff left out and counted": (lambda run: run.update(settings={"without": ["handoff"]}), "settings.without"),
    "the null backend": (lambda run: run.update(backend="null"), "moves and computes nothing"),
    "no physical device": (lambda run: run.update(physical_devices=[]), "no physical device"),
    "one physical device twice": (
        lambda run: run["physical_devices"].append(dict(run["physical_devices"][0])),
        "physical_devices names cpu:0 2 times",
    ),
    "GPUs of a processor": (lambda run: run.update(tier="on-device"), "on the processor only"),
    "stray accesses": (lambda run: run.update(stray={"accesses": 5, "detail": "x"}), "5 stray accesses"),
    "an unordered device": (lambda run: run["dispatches"][1].update(device="gpu:7"), "gpu:7, which is not ordered"),
    "another topology id": (lambda run: run["dispatches"][1].update(topology_id=500), "under topology id 500"),
    "one ordinal for two": (lambda run: run["dispatches"][1].update(ordinal=0), "under one ordinal, 0"),
    "passes that end too early": (set_steps(1, 11, 11), "decode dispatches cover passes 11..11"),
    "passes far beyond": (set_steps(1, 11, 10**6), "after 11 of"),
    "passes backwards": (set_steps(1, 20, 11), "decode dispatches of passes 20..11"),
    "a first pass in the middle": (set_steps(0, 3, 10), "prefill dispatches cover passes 3..10"),
    "no matmul in the program": (no_matmuls, "calls of its program make 0"),
    "one operation for a program": (
        lambda run: run.update(program={phase: run["program"][phase][:2] for phase in ("prefill", "decode")}),
        "calls of its program make",
    ),
    "rows that nobody saw, legs that somebody did": (
        rows_saying(witness="none", observed_bytes=None),
        "no observed bytes, its legs",
    ),
    "rows of another witness": (
        lambda run: [row.update(witness="import", observed_bytes=row["bytes"]) for row in run["waybill"]],
        "its legs",
    ),
    "a witness that saw nothing": (legs_saying(witness="arrival", observed_bytes=None), "witness arrival beside no"),
    "figures of no witness": (legs_saying(witness="none", observed_bytes=4), "witness none beside 4"),
    "copies that the witness cannot count": (
        lambda run: run["waybill"][0]["legs"][0].update(observed_copies=12),
        "counts no copies",
    ),
    "an edge that was seen otherwise": (
        lambda run: run["edges"][0].update(observed_bytes=1, witness="arrival"),
        "1 observed bytes, its legs",
    ),
    "payloads of one byte": (rows_saying(payload_bytes=1), "states a payload of 1 B"),
    "another figure a pass": (
        lambda run: next(row for row in run["waybill"] if row.get("per_pass"))["per_pass"].update(bytes=99),
        "99 bytes a pass",
    ),
    "an arena twice": (lambda run: run["resident"].append(dict(run["resident"][0])), "resident names gpu:0 2 times"),
}


@pytest.mark.parametrize(("edit", "told"), EDITS.values(), ids=EDITS)
def test_a_run_that_contradicts_itself_is_different(edit: Edit, told: str) -> None:
    planned = plan()
    run = clean_run(planned)
    assert check(compare(planned, run), "run_agrees_with_itself")["result"] == "passed"
    edit(run)
    comparison = compare(planned, run)
    assert comparison["verdict"] == "different"
    finding = check(comparison, "run_agrees_with_itself")
    assert (finding["result"], finding["required"]) == ("failed", True)
    assert told in finding["detail"]


@pytest.mark.parametrize(
    "words",
    [
        {},
        {"attention": "host"},
        {"fleet": "two-gpu-staged"},
        {"fleet": "one-gpu", "decode": "gpu:0"},
        {"kv_extent": "blocks:4"},
        {"kv_extent": "allocated"},
        {"prefill_chunk": 4},
        {"steps": 3},
        {"steps": 3, "attention": "host"},
        {"steps": 11},
    ],
)
def test_faultless_runs_agree_with_themselves(words: Document) -> None:
    planned = plan(**words)
    finding = check(compare(planned, run_of(planned)), "run_agrees_with_itself")
    assert finding["result"] == "passed", finding["detail"]


@pytest.mark.parametrize("passes", [0, 1, 5])
def test_runs_that_bos_stopped_agree_with_themselves(passes: int) -> None:
    planned = plan()
    finding = check(compare(planned, run_of(planned, stopped_after=passes)), "run_agrees_with_itself")
    assert finding["result"] == "passed", finding["detail"]


def test_the_first_contradictions_are_told_and_the_rest_counted() -> None:
    planned = plan()
    run = clean_run(planned)
    run |= {"tokens": [], "stopped": "bos", "n_prompt_tokens": 2, "backend": "null", "logits_top1_bits": []}
    run["settings"] = {"attention": "host", "positions": 7}
    assert "; and " in check(compare(planned, run), "run_agrees_with_itself")["detail"]


SHAPES: dict[str, tuple[Edit, str]] = {
    "logits of three digits": (lambda run: run["logits_top1_bits"].append("abc"), "logits_top1_bits["),
    "a digest in words": (lambda run: run["arrivals"][0].update(digest_src="0"), "arrivals[0].digest_src"),
    "an empty uuid": (lambda run: run["physical_devices"][0].update(uuid=""), "physical_devices[0].uuid"),
    "a blank uuid": (lambda run: run["physical_devices"][0].update(uuid=" "), "physical_devices[0].uuid"),
    "a dispatch without topology id": (lambda run: each(run["dispatches"], topology_id=None), "topology_id"),
    "a dispatch without passes": (lambda run: each(run["dispatches"], first_step=None), "first_step"),
    "a stretch of nothing": (lambda run: run["dispatches"][0].update(count=0), "dispatches[0].count"),
    "a row without legs": (lambda run: run["waybill"][0].pop("legs"), "waybill[0].legs"),
    "a row with null legs": (lambda run: run["waybill"][0].update(legs=None), "waybill[0].legs"),
    "null bytes": (lambda run: run["waybill"][0].update(bytes=None), "waybill[0].bytes"),
    "an edge of null bytes": (lambda run: run["edges"][0].update(bytes=None), "edges[0].bytes"),
    "no P": (lambda run: run.update(n_prompt_tokens=0), "n_prompt_tokens"),
    "settings of no kind": (lambda run: run.update(settings={"without": "handoff"}), "settings.without"),
    "a plan id in words": (lambda run: run.update(plan_id="mine"), "plan_id"),
    "half a byte of text": (lambda run: run.update(text_hex="abc"), "text_hex"),
}


@pytest.mark.parametrize(("edit", "field"), SHAPES.values(), ids=SHAPES)
def test_a_run_of_another_shape_is_refused_with_its_path(tmp_path: Path, edit: Edit, field: str) -> None:
    run = run_of(plan())
    edit(run)
    path = tmp_path / "run.json"
    path.write_text(json.dumps(run))
    with pytest.raises(DescriptionError) as caught:
        read_document(str(path), ("run",))
    assert all(field in fault.field for fault in caught.value.faults)


class TestPhysicalDevices:
    def finding(self, first: Document, second: Document, **changes: Any) -> Document:
        planned = plan()
        run = clean_run(planned) | {"tier": "on-device", "backend": "cupy"} | changes
        run["physical_devices"] = [
            {"device": planned["orders"][phase], "ordinal": 0, "uuid": None, "pci": None, "name": None} | identity
            for phase, identity in (("prefill", first), ("decode", second))
        ]
        return check(compare(planned, run), "two_physical_devices")

    @pytest.mark.parametrize(
        ("first", "second"),
        [
            ({"uuid": "GPU-ab"}, {"uuid": "gpu-AB"}),
            ({"uuid": "GPU-a"}, {"uuid": " GPU-a "}),
            ({"uuid": "a", "pci": "0000:01:00.0"}, {"uuid": "b", "pci": "00000000:01:00.0"}),
            ({"uuid": "a", "pci": "0000:0A:00.0"}, {"uuid": "b", "pci": "a:00.0"}),
        ],
    )
    def test_another_spelling_is_no_other_device(self, first: Document, second: Document) -> None:
        assert self.finding(first, second)["result"] == "failed"

    def test_blank_uuids_identify_nothing(self) -> None:
        assert self.finding({"uuid": ""}, {"uuid": " "})["result"] == "inconclusive"

    def test_two_uuids_listed_and_one_dispatched_on_fails(self) -> None:
        dispatches = [entry | {"uuid": "GPU-a"} for entry in run_of(plan())["dispatches"]]
        assert self.finding({"uuid": "GPU-a"}, {"uuid": "GPU-b"}, dispatches=dispatches)["result"] == "failed"
        dispatches[1] = dispatches[1] | {"uuid": "gpu-B"}
        assert self.finding({"uuid": "GPU-a"}, {"uuid": "GPU-b"}, dispatches=dispatches)["result"] == "passed"


class TestAlikeDigests:
    def finding(self, edit: Edit) -> Document:
        planned = plan()
        run = clean_run(planned)
        edit(run)
        comparison = compare(planned, run)
        assert failed(comparison) == set()
        return check(comparison, "kv_content_arrived")

    def test_layers_of_one_tensor_that_are_alike_tell_nothing_of_a_swap(self) -> None:
        zeros = sha256("zeros")

        def zero_values(run: Document) -> None:
            each([e for e in run["arrivals"] if e["tensor"] == "v"], digest_src=zeros, digest_dst=zeros)

        finding = self.finding(zero_values)
        assert finding["result"] == "inconclusive"
        assert "of v are alike" in finding["detail"]

    def test_one_layer_that_is_like_another_is_no_doubt(self) -> None:
        def two_alike(run: Document) -> None:
            digest = run["arrivals"][0]["digest_src"]
            run["arrivals"][1] |= {"digest_src": digest, "digest_dst": digest}

        assert self.finding(two_alike)["result"] == "passed"
