"""`admit` on room: sequences, context, shares of the free, what is in use, solving, and the ledger in words."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.command_line import Answer, Ask, asker, fleet, write_json

SMI = "index, memory.used [MiB]\n0, 10 MiB\n1, 10 MiB\n"
ASKED = ("--prompt-tokens", "20", "--steps", "60")


@pytest.fixture
def ask(capfd: pytest.CaptureFixture[str]) -> Ask:
    return asker(capfd)


@pytest.fixture
def described(tmp_path: Path) -> Path:
    return write_json(tmp_path / "fleet.yaml", fleet("64 MiB"))


def sequences(ask: Ask, described: Path, *more: str) -> Answer:
    return ask("admit", "--fleet", described, *ASKED, *more)


def test_the_largest_number_of_sequences_is_admitted_and_the_next_one_refused(ask: Ask, described: Path) -> None:
    plan = sequences(ask, described, "--max-sequences", "max", "-o", "json").document
    fit = plan["sequences"]["fit"]
    assert plan["verdict"] == "admitted"
    assert plan["inputs"]["workload"]["batch"] == fit
    assert f"batch: {fit:,} (--max-sequences max)" in plan["defaults"]
    refused = sequences(ask, described, "--max-sequences", str(fit + 1), "-o", "json")
    assert refused.code == 1
    assert refused.document["sequences"]["fit"] == fit
    short = refused.document["sequences"]["short"]
    assert {each["device"] for each in short} == {"gpu:0", "gpu:1"}
    assert short[0]["shortfall_bytes"] == refused.document["reasons"][0]["shortfall_bytes"]
    assert refused.document["reasons"][0]["fix"] == {"flag": "--max-sequences", "from": fit + 1, "to": fit}


def test_sequences_are_told_in_one_line(ask: Ask, described: Path) -> None:
    out = sequences(ask, described, "--max-sequences", "max").out
    assert re.search(
        r"^Sequences   \d+ fit; \d+ is short by [\d,]+ B \(.*\) on gpu:0 and short by .* on gpu:1$", out, re.M
    )


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--max-sequences", "many"), "is no number of sequences"),
        (("--max-sequences", "0"), "use 1 to"),
        (("--max-sequences", "3", "--batch", "2"), "two words for one thing"),
        (("--utilization-of", "all"), "use total"),
        (("--solve", "link"), "add --ttft"),
        (("--solve", "links", "--ttft", "1 s"), "did you mean link"),
        (("--ttft", "1 s"), "give both"),
        (("--solve", "link", "--ttft", "soon"), "no quantity"),
        (("--solve", "link", "--ttft", "0 s"), "no time to first token"),
        (("--in-use", "absent.json"), "no such file"),
        (("--in-use", "-", "--in-use", "-"), "only one text"),
    ],
)
def test_wrong_words_on_room_are_code_2(ask: Ask, described: Path, flags: tuple[str, ...], words: str) -> None:
    answer = sequences(ask, described, *flags)
    assert answer.code == 2
    assert words in answer.err


def test_a_context_alone_cuts_the_default_of_steps(ask: Ask, described: Path) -> None:
    plan = ask("admit", "--fleet", described, "--context", "100", "-o", "json").document
    assert plan["inputs"]["workload"]["positions"] == plan["inputs"]["workload"]["passes"] == 100
    assert "steps: 100, as many as the cache holds" in plan["defaults"]


def test_a_share_of_the_free_bounds_the_cache_and_follows(ask: Ask, described: Path, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    words = ("--utilization-of", "free", "--utilization", "0.5", "--plan-out", out, "-o", "json")
    plan = ask("admit", "--fleet", described, *ASKED, *words).document
    for entry in plan["memory"]:
        rest = entry["total_bytes"] - entry["resident"]["kv_cache"]
        assert entry["budget_bytes"] == rest + (entry["capacity_bytes"] - rest) // 2
    explained = ask("explain", out)
    assert explained.code == 0
    assert "all but the cache" in explained.out


def test_an_admitted_plan_and_a_csv_are_subtracted_and_the_plan_round_trips(
    ask: Ask, described: Path, tmp_path: Path
) -> None:
    first, second, csv = tmp_path / "a.json", tmp_path / "b.json", tmp_path / "smi.csv"
    csv.write_text(SMI)
    assert sequences(ask, described, "--plan-out", str(first)).code == 0
    held = {entry["device"]: entry["total_bytes"] for entry in json.loads(first.read_text())["memory"]}
    answer = sequences(
        ask, described, "--in-use", str(first), "--in-use", str(csv), "--plan-out", str(second), "-o", "json"
    )
    assert answer.code == 0
    for entry in answer.document["memory"]:
        assert entry["in_use_bytes"] == held[entry["device"]] + 11 * 2**20 - 1
        assert entry["budget_bytes"] == entry["capacity_bytes"] - entry["in_use_bytes"]
    texts = answer.document["inputs"]["in_use"]
    assert [text["format"] for text in texts] == ["plan", "nvidia-smi"]
    assert any("both are subtracted" in words for words in answer.document["warnings"])
    assert ask("explain", second).code == 0
    assert ask("compare", first, second).code == 1  # other budgets


def test_a_plan_of_another_fleet_is_refused_as_wrong_input(ask: Ask, described: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    assert ask("admit", "two-gpu", "--plan-out", plan).code == 0
    answer = sequences(ask, described, "--in-use", str(plan))
    assert answer.code == 2
    assert "is a plan of fleet two-gpu-nvlink" in answer.err


def test_an_edited_plan_is_not_in_use(ask: Ask, described: Path, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    sequences(ask, described, "--plan-out", str(path))
    document = json.loads(path.read_text())
    document["memory"][0]["total_bytes"] -= 4096
    write_json(path, document)
    answer = sequences(ask, described, "--in-use", str(path))
    assert answer.code == 2
    assert "memory" in answer.err or "edited" in answer.err


def test_solving_ends_with_the_code_of_its_answer(ask: Ask, described: Path) -> None:
    config = ("--solve", "link", "--ttft")
    unpriced = sequences(ask, described, *config, "1 s", "-o", "json")
    assert unpriced.out, unpriced.err
    assert (unpriced.code, unpriced.document["solved"]["verdict"]) == (3, "unverified")
    solved = ask("admit", "two-gpu", *config, "1 s", "-o", "json")
    assert (solved.code, solved.document["solved"]["verdict"]) == (0, "solved")
    impossible = ask("admit", "two-gpu", *config, "1 us", "-o", "json")
    assert (impossible.code, impossible.document["solved"]["verdict"]) == (1, "impossible")
    assert "Solved      needs >= " in ask("admit", "two-gpu", *config, "1 s").out


def test_the_ledger_and_every_dimension_are_told_with_explain(ask: Ask) -> None:
    out = ask("admit", "two-gpu-tight", "--explain").out
    for line in ("weights", "kv_cache", "activations", "workspace", "runtime", "rounding", "total", "in flight",
                 "capacity", "in use", "reserve", "budget", "slack of the device", "slack"):  # fmt: skip
        assert re.search(rf"^  {line} = ", out, re.M), line
    for dimension in ("utilization", "sequences", "KV type", "tensor-parallel degree", "other route"):
        assert f"  - {dimension}: " in out
    assert "Ledger of" not in ask("admit", "two-gpu-tight").out


def test_a_refused_plan_is_explained_by_its_ledger(ask: Ask, tmp_path: Path) -> None:
    path = tmp_path / "refused.json"
    path.write_text(ask("admit", "two-gpu-tight", "-o", "json").out)
    answer = ask("explain", path, "kv_cache")
    assert answer.code == 0
    assert "decode/k [5 x 96 x 32] x 4 B = 61,440 B" in answer.out


def test_a_share_of_the_free_of_one_memory_holds_for_both_devices_in_it(ask: Ask, tmp_path: Path) -> None:
    made = fleet(["8 MiB", "8 MiB"])
    for device in made["devices"]:
        device["memories"][0] |= {"shared": "true", "physical": "pool"}
    path, out = write_json(tmp_path / "one.yaml", made), tmp_path / "plan.json"
    words = ("--utilization-of", "free", "--utilization", "0.5", "--batch", "8", "--plan-out", out, "-o", "json")
    plan = ask("admit", "--fleet", path, *ASKED, *words).document
    total = sum(entry["total_bytes"] for entry in plan["memory"])
    cache = sum(entry["resident"]["kv_cache"] for entry in plan["memory"])
    for entry in plan["memory"]:
        assert entry["shared"]["slack_bytes"] == total - cache + (8 * 2**20 - (total - cache)) // 2 - total
    assert ask("explain", out).code == 0


def test_a_plan_beside_what_is_in_use_runs(ask: Ask, tmp_path: Path) -> None:
    csv, out = tmp_path / "smi.csv", tmp_path / "plan.json"
    csv.write_text(SMI)
    assert ask("admit", "two-gpu", "--in-use", csv, "--plan-out", out).code == 0
    assert ask("run", out).code == 0


@pytest.mark.parametrize(
    ("word", "words"),
    [
        ("gpu:7=1GiB", "'gpu:7' is no device of the fleet"),
        ("gpu:1=much", "--in-use gpu:1"),
        ("gpu:1=1GiB,gpu:0=1GiB", "is no device of the fleet"),
        ("gpu:1:1GiB", "'gpu:1:1GiB' is no file; a device's use is written DEVICE=SIZE, e.g. gpu:0=12GiB"),
        ("gpu:1", "'gpu:1' is no file; a device's use is written DEVICE=SIZE"),
    ],
)
def test_a_statement_of_what_is_in_use_that_cannot_be_meant_is_told(
    ask: Ask, described: Path, word: str, words: str
) -> None:
    answer = sequences(ask, described, "--in-use", word)
    assert answer.code == 2
    assert words in " ".join(answer.err.split())


def test_what_is_in_use_may_be_stated_in_place_of_a_text(ask: Ask, described: Path) -> None:
    answer = sequences(ask, described, "--in-use", "gpu:1=12MiB", "-o", "json")
    assert answer.code == 0
    assert answer.document["inputs"]["in_use"] == [{"stated": "gpu:1=12MiB", "format": "stated"}]
    assert [entry.get("in_use_bytes") for entry in answer.document["memory"]] == [0, 12 * 2**20]
