"""The proof: every check can fail, every sabotage is caught, honest runs raise no alarm."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import pytest

from executor.hands import Hands
from executor.stretch import Stretch, Walked
from fleet.catalog import catalog_text
from scenarios import prove as proving
from scenarios.compare import compare
from scenarios.faulty_hands import AnotherBody
from scenarios.plan_figures import ledger_disagrees
from scenarios.planning import make_plan
from scenarios.runner import execute, plan_for, set_up
from scenarios.sabotage import SABOTAGES, Sabotage, falsified_bytes, falsified_memory
from scenarios.wanted import prepare, wanted_of

Document = dict[str, Any]
STEPS = 56


def proof_of(scenario: str, **words: Any) -> Document:
    proof, plan = proving.prove(prepare(wanted_of(scenario, {"steps": STEPS} | words)))
    assert plan["verdict"] == "admitted"
    return proof


@pytest.mark.parametrize(
    ("scenario", "extent"),
    [
        ("two-gpu", "filled"),
        ("two-gpu", "blocks:16"),
        ("two-gpu-staged", "filled"),
        ("two-gpu-staged", "allocated"),
        ("two-gpu-host", "filled"),
        ("two-gpu-host", "allocated"),
        ("gpu-and-cpu", "blocks:7"),
        ("one-gpu", "filled"),
    ],
)
def test_every_shipped_scenario_is_proved(scenario: str, extent: str) -> None:
    proof = proof_of(scenario, kv_extent=extent)
    missed = [(row["sabotage"], row["detail"]) for row in proof["matrix"] if row["verdict"] == "missed"]
    assert missed == []
    assert proof["never_failed"] == []
    assert proof["verdict"] == "proved"


@pytest.mark.parametrize(
    ("scenario", "layout", "path"),
    [
        ("two-gpu", "plain", "fused"),
        ("two-gpu", "packed16", "fused"),
        ("two-gpu", "packed16", "dispatch"),
        ("two-gpu-staged", "plain", "dispatch"),
        ("two-gpu-host", "plain", "dispatch"),
    ],
)
def test_a_proof_holds_where_ids_are_drawn(scenario: str, layout: str, path: str) -> None:
    words = {"steps": STEPS, "layout": layout, "temperature": 0.9, "seed": 3}
    proof, _ = proving.prove(prepare(wanted_of(scenario, words)), path=path)
    missed = [(row["sabotage"], row["detail"]) for row in proof["matrix"] if row["verdict"] == "missed"]
    assert (missed, proof["never_failed"], proof["verdict"]) == ([], [], "proved")
    split, oracle = proof["runs"]["split"], proof["runs"]["single_device"]
    assert split["settings"]["temperature"] == oracle["settings"]["temperature"] == 0.9
    assert split["tokens"] == oracle["tokens"]


@pytest.mark.parametrize(
    ("scenario", "layout", "path", "extent"),
    [
        ("two-gpu", "packed16", "fused", "filled"),
        ("two-gpu", "plain", "dispatch", "filled"),
        ("two-gpu", "packed16", "dispatch", "blocks:16"),
        ("two-gpu-staged", "packed16", "dispatch", "allocated"),
        ("one-gpu", "packed16", "dispatch", "filled"),
        ("two-gpu-staged", "packed16", "fused", "allocated"),
        ("two-gpu-staged", "plain", "dispatch", "blocks:16"),
        ("gpu-and-cpu", "packed16", "fused", "blocks:7"),
        ("one-gpu", "packed16", "fused", "filled"),
        ("one-gpu", "plain", "dispatch", "filled"),
    ],
)
def test_every_layout_is_proved_on_every_path(scenario: str, layout: str, path: str, extent: str) -> None:
    words = {"steps": STEPS, "layout": layout, "kv_extent": extent}
    proof, _ = proving.prove(prepare(wanted_of(scenario, words)), path=path)
    assert [(row["sabotage"], row["detail"]) for row in proof["matrix"] if row["verdict"] == "missed"] == []
    assert (proof["verdict"], proof["never_failed"]) == ("proved", [])
    assert {run["path"] for run in proof["runs"].values()} == {path}


def test_one_odd_call_in_the_middle_of_a_fused_decode_shows() -> None:
    """Only one pass of decode runs the other body: its first and last call are the program text's own."""

    class OddInTheMiddle(AnotherBody):
        def phase(self, stretch: Stretch) -> Walked:
            if stretch.phase != "decode":
                return Hands.phase(self, stretch)
            walked, ids = Walked(), stretch.ids
            for first, last, odd in ((0, 5, False), (5, 6, True), (6, stretch.passes, False)):
                part = dataclasses.replace(
                    stretch, first=stretch.first + first, passes=last - first, ids=ids, continues=first > 0
                )
                walked = walked.then((AnotherBody if odd else Hands).phase(self, part))
                ids = tuple(walked.chosen[-1:])
            return walked

    for layout in ("plain", "packed16"):
        bench = set_up(make_plan(prepare(wanted_of("two-gpu", {"steps": STEPS, "layout": layout}))))
        comparison = compare(plan_for(bench), execute(bench, hands=OddInTheMiddle()))
        assert [c["name"] for c in comparison["checks"] if c["result"] == "failed"] == ["one_program_text"]


def test_every_named_sabotage_of_a_split_is_really_tried() -> None:
    proof = proof_of("two-gpu")
    assert [row["sabotage"] for row in proof["matrix"]] == [s.name for s in SABOTAGES if not s.physical_only]
    assert {row["verdict"] for row in proof["matrix"]} == {"caught"}


@pytest.mark.parametrize("name", ["K and V swapped", "wrong layer", "stale cache"])
def test_equal_bytes_are_caught_by_their_content_alone(name: str) -> None:
    row = next(row for row in proof_of("two-gpu")["matrix"] if row["sabotage"] == name)
    assert "kv_content_arrived" in row["failed"]
    assert not {"edges_match", "handoff_bytes_match", "resident_match"} & set(row["failed"])


def test_both_directions_are_proved() -> None:
    assert proof_of("two-gpu", prefill="gpu:1", decode="gpu:0")["verdict"] == "proved"


def test_a_sabotage_that_nothing_catches_fails_the_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    harmless = Sabotage(
        name="nothing at all",
        what="honest hands under a false name",
        must_fail=("edges_match",),
        must_pass=(),
        hands=lambda _: Hands(),
    )
    monkeypatch.setattr(proving, "SABOTAGES", (*SABOTAGES, harmless))
    proof = proof_of("two-gpu")
    assert proof["verdict"] == "not proved"
    assert [row["sabotage"] for row in proof["matrix"] if row["verdict"] == "missed"] == ["nothing at all"]


def test_a_check_that_nothing_fails_fails_the_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    others = tuple(s for s in SABOTAGES if "one_program_text" not in s.must_fail and s.name != "no decode")
    monkeypatch.setattr(proving, "SABOTAGES", others)
    proof = proof_of("two-gpu")
    assert {"one_program_text", "decode_dispatched"} <= set(proof["never_failed"])
    assert proof["verdict"] == "not proved"


def test_a_dishonest_run_fails_the_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clean run itself is made by hands that copy once too often."""
    from scenarios.faulty_hands import OneCopyTooMany

    monkeypatch.setattr(proving, "Hands", OneCopyTooMany)
    assert proof_of("two-gpu")["verdict"] == "not proved"


def test_a_prompt_as_long_as_the_passes_is_inconclusive() -> None:
    proof = proof_of("two-gpu", steps=20)
    assert proof["verdict"] == "inconclusive"
    assert proof["matrix"] == []


def test_a_falsified_prediction_leaves_the_run_as_it_is() -> None:
    proof = proof_of("two-gpu")
    rows = {row["sabotage"]: row for row in proof["matrix"]}
    assert rows["falsified bytes"]["failed"] == ["edges_match", "handoff_bytes_match"]
    assert rows["falsified memory"]["failed"] == ["resident_match"]


@pytest.mark.parametrize("scenario", ["two-gpu", "two-gpu-host", "two-gpu-staged"])
@pytest.mark.parametrize("falsify", [falsified_bytes, falsified_memory])
def test_a_falsified_plan_is_false_in_one_thing_and_agrees_with_itself_in_its_ledger(
    falsify: Any, scenario: str
) -> None:
    plan = make_plan(prepare(wanted_of(scenario, {"steps": STEPS})))
    false = falsify(plan)
    assert false["memory"] != plan["memory"]
    assert ledger_disagrees(false) == []


@pytest.mark.parametrize("scenario", ["two-gpu", "two-gpu-host", "two-gpu-staged"])
def test_two_hundred_honest_runs_raise_no_false_alarm(scenario: str) -> None:
    """Prompts of many lengths; one machine setup a length, several prompts on it."""
    chance = random.Random(347)
    runs = {"two-gpu": 200, "two-gpu-host": 40, "two-gpu-staged": 40}[scenario]
    per_length = 10
    for _ in range(runs // per_length):
        length = chance.randint(1, 60)
        words = {"prompt": "x" * length, "steps": length + 3 + chance.randint(0, 12)}
        words["kv_extent"] = chance.choice(["filled", "allocated", f"blocks:{chance.randint(1, 20)}"])
        bench = set_up(make_plan(prepare(wanted_of(scenario, words))))
        for _ in range(per_length):
            ids = (1, *(chance.randrange(3, 259) for _ in range(bench.orders.workload.prompt_tokens - 1)))
            work = dataclasses.replace(bench.orders.workload, prompt_ids=ids)
            orders = dataclasses.replace(bench.orders, workload=work)
            run = execute(dataclasses.replace(bench, orders=orders))
            comparison = compare(plan_for(bench), run)
            bad = [c for c in comparison["checks"] if c["required"] and c["result"] not in ("passed", "waived")]
            if run["stopped"] == "bos" and run["passes"]["decode"] == 0:
                continue
            assert bad == [], (length, words, ids)
            assert comparison["verdict"] == "equal"


@pytest.mark.parametrize("pool", ["300 B", "512 B", "640 B"])
@pytest.mark.parametrize("extent", ["filled", "blocks:7", "allocated"])
def test_a_pinned_pool_that_cuts_copies_unevenly_is_proved(tmp_path: Path, pool: str, extent: str) -> None:
    """A pool that divides neither the prompt nor a block: the last piece of a copy is smaller than the others."""
    text = catalog_text("two-gpu-staged").replace("- id: host\n", f"- id: host\n    pinned_pool: {pool}\n")
    fleet = tmp_path / "pool.yaml"
    fleet.write_text(text, encoding="utf-8")
    proof = proof_of("two-gpu-staged", fleet=str(fleet), kv_extent=extent)
    assert [row["sabotage"] for row in proof["matrix"] if row["verdict"] == "missed"] == []
    assert proof["verdict"] == "proved"
