"""Plan, run, compare by the command line: what may be given beside a plan, codes of every end, several answers."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from scenarios.documents import canonical, plan_id
from scenarios.sabotage import falsified_bytes, falsified_memory
from tests.checkpoint_files import Dims, tokenizer_bytes, write_checkpoint
from tests.command_line import Ask, Document, asker, fleet, write_json

PROMPT, P = "The waybill says what each leg carries.", 41
"""The shipped scenarios' prompt and its ids, BOS included."""


@pytest.fixture
def ask(capfd: pytest.CaptureFixture[str]) -> Ask:
    return asker(capfd)


@pytest.fixture
def plan(tmp_path: Path, ask: Ask) -> Path:
    path = tmp_path / "plan.json"
    assert ask("admit", "two-gpu", "--plan-out", path).code == 0
    return path


def read(path: Path) -> Document:
    document: Document = json.loads(path.read_text())
    return document


def signed(path: Path, document: Document) -> Path:
    return write_json(path, document | {"id": plan_id(document)})


def checks(comparison: Document) -> dict[str, str]:
    return {check["name"]: check["result"] for check in comparison["checks"]}


def test_plan_then_run_then_compare(plan: Path, tmp_path: Path, ask: Ask) -> None:
    run = tmp_path / "run.json"
    printed = ask("run", plan, "--run-out", run, "-o", "json")
    assert printed.code == 0
    assert printed.document == read(run)
    assert read(run)["plan_id"] == read(plan)["id"] == plan_id(read(plan))
    compared = ask("compare", plan, run, "-o", "json")
    assert compared.code == 0
    document = compared.document
    named = document.pop("documents")
    assert [(each["kind"], each["plan_id"]) for each in named] == [(k, read(plan)["id"]) for k in ("plan", "run")]
    assert document == read(run)["comparison"]
    assert {row["difference"] for row in document["rows"]} == {0}


def test_an_edge_is_observed_where_a_witness_saw_all_its_legs(plan: Path, ask: Ask) -> None:
    edges = {(e["src"], e["dst"]): e for e in ask("run", plan, "-o", "json").document["edges"]}
    across, up = edges["gpu:0", "gpu:1"], edges["host", "gpu:0"]
    assert (across["observed_bytes"], across["witness"]) == (across["bytes"], "arrival")
    assert (up["observed_bytes"], up["witness"]) == (None, "none")  # token ids cross it beside the weights
    lost = ask("run", plan, "--without", "handoff", "-o", "json").document["edges"]
    assert ("gpu:0", "gpu:1") not in {(e["src"], e["dst"]) for e in lost}


def test_a_run_of_the_scenario_is_the_run_of_its_plan(plan: Path, tmp_path: Path, ask: Ask) -> None:
    assert ask("run", "two-gpu", "--run-out", tmp_path / "a.json").code == 0
    assert ask("run", plan, "--run-out", tmp_path / "b.json").code == 0
    assert ask("compare", tmp_path / "a.json", tmp_path / "b.json").code == 0
    assert read(tmp_path / "a.json")["plan_id"] == read(tmp_path / "b.json")["plan_id"]


def test_the_plan_printed_is_the_plan_written(plan: Path, ask: Ask) -> None:
    printed = ask("admit", "two-gpu", "-o", "json").document
    assert printed == read(plan)
    assert list(printed)[:3] == ["schema", "verdict", "id"]
    assert json.loads(canonical(printed)) == printed


@pytest.mark.parametrize(
    ("scenario", "code", "word"), [("two-gpu-tight", 1, "REFUSED"), ("two-gpu-unknown", 3, "UNVERIFIED")]
)
@pytest.mark.parametrize("command", ["admit", "run", "prove"])
def test_only_admitted_scenarios_are_run(
    command: str, scenario: str, code: int, word: str, tmp_path: Path, ask: Ask
) -> None:
    more = {"admit": ["--plan-out", tmp_path / "p.json"], "run": ["--run-out", tmp_path / "r.json"]}.get(command, [])
    answer = ask(command, scenario, *more)
    assert answer.code == code
    assert answer.out.startswith(word)
    assert list(tmp_path.iterdir()) == []
    assert ("nothing was run" if command != "admit" else "no plan was written") in answer.err
    document = ask(command, scenario, "-o", "json").document
    assert document["verdict"] == word.lower()
    assert document["orders"] is None


@pytest.mark.parametrize(("scenario", "code"), [("two-gpu-tight", 1), ("two-gpu-unknown", 3)])
def test_a_plan_that_was_not_admitted_can_be_explained_and_not_run(
    scenario: str, code: int, tmp_path: Path, ask: Ask
) -> None:
    document = ask("admit", scenario, "-o", "json").document
    path = write_json(tmp_path / "plan.json", document)
    assert ask("run", path).code == code
    for reason in document["reasons"]:
        assert reason["message"][:40] in ask("explain", path, reason["code"]).out


@pytest.mark.parametrize("flag", ["--steps", "--prefill", "--decode", "--attention", "--kv-extent"])
def test_what_was_decided_cannot_be_given_beside_a_plan(flag: str, plan: Path, ask: Ask) -> None:
    value = {"--steps": "9", "--attention": "device", "--kv-extent": "filled"}.get(flag, "gpu:0")
    answer = ask("run", plan, flag, value)
    assert answer.code == 2
    assert flag in answer.err
    assert "admit again" in answer.err


def test_a_prompt_of_exactly_p_tokens_may_be_given_beside_a_plan(plan: Path, tmp_path: Path, ask: Ask) -> None:
    own = ask("run", plan, "-o", "json").document
    other = ask("run", plan, "--prompt", PROMPT.swapcase(), "-o", "json")
    assert other.code == 0
    assert other.document["n_prompt_tokens"] == P
    assert other.document["plan_id"] == own["plan_id"]
    assert other.document["tokens"][1:P] != own["tokens"][1:P]
    assert other.document["text"].startswith(PROMPT.swapcase())
    for wrong in (PROMPT + "!", PROMPT[1:]):
        answer = ask("run", plan, "--prompt", wrong)
        assert answer.code == 2
        assert f"exactly {P}" in answer.err
        assert "admit again" in answer.err


def test_a_plan_of_a_count_runs_with_a_prompt_of_that_count(tmp_path: Path, ask: Ask) -> None:
    path = tmp_path / "plan.json"
    assert ask("admit", "two-gpu", "--prompt-tokens", P, "--plan-out", path).code == 0
    assert read(path)["orders"]["workload"]["prompt_ids"] is None
    assert ask("run", path).code == 2
    assert ask("run", path, "--prompt", PROMPT).code == 0


def test_the_reference_is_for_the_plans_own_prompt(tmp_path: Path, ask: Ask) -> None:
    tokens = ask("run", "two-gpu", "-o", "json").document["tokens"]
    scenario = {
        "schema": "kvwaybill/scenario/1", "fleet": "two-gpu-nvlink", "workload": {"prompt": PROMPT, "steps": "96"},
        "expect": [str(token) for token in tokens],
    }  # fmt: skip
    path = write_json(tmp_path / "case.yaml", scenario)
    plan = tmp_path / "plan.json"
    assert ask("admit", path, "--plan-out", plan).code == 0
    assert checks(ask("run", plan, "-o", "json").document["comparison"])["tokens_equal_reference"] == "passed"
    other = ask("run", plan, "--prompt", PROMPT.swapcase(), "-o", "json")
    assert other.code == 0
    assert checks(other.document["comparison"])["tokens_equal_reference"] == "waived"
    for words in (["--prompt", "Another."], ["--steps", "50"], ["--attention", "host"]):
        assert ask("run", path, *words).code == 0


@pytest.mark.parametrize("falsify", [falsified_bytes, falsified_memory])
def test_a_falsified_prediction_signed_anew_leaves_the_run_and_changes_the_comparison(
    falsify: Any, plan: Path, tmp_path: Path, ask: Ask
) -> None:
    false = signed(tmp_path / "false.json", falsify(read(plan)))
    assert read(false)["orders"] == read(plan)["orders"]
    honest = ask("run", plan, "-o", "json")
    fooled = ask("run", false, "-o", "json")
    assert (honest.code, fooled.code) == (0, 1)
    differs = {name for name, value in honest.document.items() if fooled.document[name] != value}
    assert differs == {"plan_id", "rates", "spans", "comparison"}
    assert fooled.document["comparison"]["verdict"] == "different"
    assert ask("compare", plan, false).code == 1


def test_unknown_keys_are_kept_and_ignored(plan: Path, tmp_path: Path, ask: Ask) -> None:
    document = read(plan)
    for part in (
        document,
        document["orders"],
        document["orders"]["workload"],
        document["waybill"][0],
        document["memory"][0],
    ):
        part["x-from-elsewhere"] = {"anything": [1]}
    later = signed(tmp_path / "later.json", document)
    assert ask("run", later).code == 0
    assert ask("compare", plan, later).code == 0
    assert ask("explain", later).code == 0


def test_without_the_handoff_its_rows_are_missing_and_no_other(plan: Path, ask: Ask) -> None:
    answer = ask("run", plan, "--without", "handoff", "-o", "json")
    assert answer.code == 1
    comparison = answer.document["comparison"]
    missing = [(row["phase"], row["tensor"]) for row in comparison["rows"] if row["verdict"] == "missing"]
    assert missing == [("handoff", "k"), ("handoff", "v")]
    assert {row["verdict"] for row in comparison["rows"]} == {"missing", "match", "unwitnessed"}
    failed = {name for name, result in checks(comparison).items() if result == "failed"}
    assert failed == {"edges_match", "handoff_bytes_match", "kv_content_arrived"}


def test_in_host_mode_the_legs_of_the_host_stay_without_the_handoff(ask: Ask) -> None:
    answer = ask("run", "two-gpu-host", "--without", "handoff", "-o", "json")
    assert answer.code == 1
    rows = answer.document["comparison"]["rows"]
    gone = [(row["src"], row["dst"]) for row in rows if row["phase"] == "handoff" and row["verdict"] == "missing"]
    there = [(row["src"], row["dst"]) for row in rows if row["phase"] == "handoff" and row["counted_bytes"]]
    assert gone == [("gpu:0", "gpu:1")] * 2
    assert sorted(there) == [("gpu:1", "host")] * 2 + [("host", "gpu:0")] * 2


SPLIT_CHECKS = {
    "decode_dispatched", "device_switch_at_phase_boundary", "handoff_bytes_match", "kv_content_arrived",
    "one_program_text",
}  # fmt: skip


@pytest.mark.parametrize(("steps", "sampled"), [(P, 1), (P - 1, 0), (1, 0)])
@pytest.mark.parametrize("scenario", ["two-gpu", "two-gpu-host"])
def test_without_a_decode_pass_nothing_about_the_split_is_claimed(
    steps: int, sampled: int, scenario: str, ask: Ask
) -> None:
    plan = ask("admit", scenario, "--steps", steps, "-o", "json").document
    assert plan["passes"] == {"prefill": steps, "decode": 0}
    assert plan["handoff"] is None
    phases = {row["phase"] for row in plan["waybill"]}
    assert phases == {"stage", "prefill"}
    assert [row["dst"] for row in plan["waybill"] if row["phase"] == "stage"] == ["gpu:0", "gpu:1"]
    assert all(entry["resident"]["kv_cache"] > 0 for entry in plan["memory"] if entry["device"].startswith("gpu"))
    has_token = any(row["tensor"] == "next_token" for row in plan["waybill"])
    assert has_token == (sampled == 1 and scenario == "two-gpu")
    answer = ask("run", scenario, "--steps", steps, "-o", "json")
    assert answer.code == 3
    run = answer.document
    assert len(run["generated_tokens"]) == sampled
    assert len(run["tokens"]) == steps + 1
    results = checks(run["comparison"])
    assert {name for name, result in results.items() if result == "inconclusive"} - {
        "two_physical_devices"
    } == SPLIT_CHECKS
    proved = ask("prove", scenario, "--steps", steps, "-o", "json")
    assert proved.code == 3
    assert checks(proved.document["comparisons"][0]["comparison"])["handoff_is_load_bearing"] == "inconclusive"


def test_a_run_that_bos_stops_is_held_to_the_passes_it_made(tmp_path: Path, ask: Ask) -> None:
    """Seeds of a tiny model: one whose walk meets BOS after some decode passes, one that chooses it first of all."""
    model = write_checkpoint(tmp_path, Dims(seq_len=40), seed=1)
    plan, run = tmp_path / "plan.json", tmp_path / "run.json"
    words = ["--fleet", "two-gpu-nvlink", "--model", model, "--steps", "30", "--plan-out", plan]
    assert ask("admit", *words).code == 0
    assert ask("run", plan, "--run-out", run).code == 0
    made = read(run)
    assert made["stopped"] == "bos"
    assert made["tokens"][-1] == 1
    assert 1 < made["passes"]["decode"] < read(plan)["passes"]["decode"] == 29
    compared = ask("compare", plan, run, "-o", "json")
    assert compared.code == 0
    assert compared.document["passes"] == {"made": made["passes"], "full_length": read(plan)["passes"]}
    row = next(r for r in compared.document["rows"] if (r["phase"], r["tensor"]) == ("decode", "next_token"))
    assert row["predicted_bytes"] == row["counted_bytes"] == 4 * made["passes"]["decode"]
    assert row["predicted_full_bytes"] == 4 * 29
    write_checkpoint(tmp_path, Dims(seq_len=40), seed=15)
    assert ask("admit", *words).code == 0
    assert ask("run", plan, "--run-out", run).code == 3
    assert read(run)["passes"]["decode"] == 0
    assert read(run)["generated_tokens"] == [1]


def test_several_fleets_give_one_document_and_one_code(ask: Ask) -> None:
    codes = {"two-gpu-nvlink": 0, "two-gpu-pcie": 0, "two-gpu-tight": 1, "two-gpu-unknown": 3}
    for names, code in [
        (["two-gpu-nvlink", "two-gpu-pcie"], 0),
        (["two-gpu-nvlink", "two-gpu-tight", "two-gpu-unknown"], 1),
        (["two-gpu-unknown", "two-gpu-tight"], 1),
        (["two-gpu-unknown", "two-gpu-nvlink"], 3),
    ]:
        flags = [part for name in names for part in ("--fleet", name)]
        answer = ask("admit", "two-gpu", *flags, "-o", "json")
        assert answer.code == code
        assert answer.document["schema"] == "kvwaybill/admissions/1"
        plans = answer.document["plans"]
        assert [plan["inputs"]["fleet"]["name"] for plan in plans] == names
        for name, plan in zip(names, plans, strict=True):
            assert ask("admit", "two-gpu", "--fleet", name, "-o", "json").document == plan
            assert ask("admit", "two-gpu", "--fleet", name).code == codes[name]


def test_the_fields_own_names_ask_the_same_question(ask: Ask) -> None:
    ours = ["--prompt-tokens", "9", "--new-tokens", "20", "--batch", "3", "--positions", "99",
            "--kv-extent", "blocks:8", "--utilization", "0.5"]  # fmt: skip
    theirs = ["--isl", "9", "--osl", "20", "--max-num-seqs", "3", "--max-model-len", "99", "--block-size", "8",
              "--gpu-memory-utilization", "0.5", "--tp", "1"]  # fmt: skip
    first, second = (ask("admit", "two-gpu", *words, "-o", "json").document for words in (ours, theirs))
    assert first == second
    assert first["passes"] == {"prefill": 9, "decode": 19}


def test_overrides_stand_for_the_words_of_the_scenario(ask: Ask) -> None:
    words = ["--fleet", "two-gpu-pcie", "--prompt", "Carry it.", "--steps", "30", "--prefill", "gpu:1",
             "--decode", "gpu:0", "--attention", "host", "--kv-extent", "allocated"]  # fmt: skip
    plan = ask("admit", "two-gpu", *words, "-o", "json").document
    run = ask("run", "two-gpu", *words, "-o", "json")
    assert run.code == 0
    assert run.document["plan_id"] == plan["id"]
    assert [(s["phase"], s["device"], s["ordinal"]) for s in run.document["dispatches"]] == [
        ("prefill", "gpu:1", 1), ("decode", "gpu:0", 0),
    ]  # fmt: skip
    assert plan["inputs"]["fleet"]["name"] == "two-gpu-pcie"
    assert run.document["settings"]["kv_extent"] == "allocated"
    assert ask("admit", "two-gpu", "--new-tokens", "5", "-o", "json").document["passes"] == {"prefill": P, "decode": 4}


def test_stdin_is_read_wherever_a_document_is(
    plan: Path, tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    def given(text: str) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(text.encode()))))

    question = "schema: kvwaybill/scenario/1\nfleet: two-gpu-nvlink\nworkload: {prompt: Carry it., steps: 30}\n"
    as_json = json.dumps({"schema": "kvwaybill/scenario/1", "fleet": "two-gpu-nvlink", "workload": {"steps": "9"}})
    for arguments, text in (
        (["run", "-"], plan.read_text()),
        (["run", "-"], question),
        (["run", "-"], as_json),
        (["admit", "-"], question),
        (["explain", "-"], plan.read_text()),
        (["compare", plan, "-"], plan.read_text()),
        (["scenario", "show", "-"], question),
        (["admit", "--fleet", "-"], json.dumps(fleet())),
        (["fleet", "check", "-"], json.dumps(fleet())),
    ):
        given(text)
        assert ask(*arguments).code == 0, arguments


def test_fleet_show_is_a_fleet_again(tmp_path: Path, ask: Ask) -> None:
    for name in ("two-gpu-nvlink", "gpu-and-cpu", "two-gpu-unknown"):
        shown = ask("fleet", "show", name, "-o", "json").document
        path = write_json(tmp_path / "shown.json", shown)
        assert ask("fleet", "show", path, "-o", "json").document | {"source": shown["source"]} == shown
        assert (
            ask("admit", "two-gpu", "--decode", "cpu:0", "--fleet", name).code
            == ask("admit", "two-gpu", "--decode", "cpu:0", "--fleet", path).code
        )


WALKS, STOPS_EARLY, STOPS_AT_ONCE = 3, 4, 2
"""Seeds of the checkpoint below whose walks go on to the end, meet BOS in decode, and choose it first of all."""


def own_files(folder: Path, seed: int = WALKS) -> Path:
    """A scenario with a fleet, a checkpoint and a tokenizer of its own, named by relative paths."""
    (folder / "files").mkdir(parents=True)
    write_json(folder / "files" / "fleet.yaml", fleet("1 MiB"))
    write_checkpoint(folder / "files", Dims(dim=16, hidden_dim=24, vocab_size=32, seq_len=48), version=1, seed=seed)
    pieces = [b"<unk>", b"\n<s>\n", b"\n</s>\n", *(chr(97 + i).encode() for i in range(26)), b" ", b"ab", b"cd"]
    scores = [0.0] * 30 + [1.0, 2.0]
    (folder / "files" / "tok.bin").write_bytes(tokenizer_bytes(list(zip(scores, pieces, strict=True))))
    scenario = {
        "schema": "kvwaybill/scenario/1", "name": "own", "x-note": "free", "fleet": "files/fleet.yaml",
        "model": "files/model.bin", "tokenizer": "files/tok.bin", "workload": {"prompt": "abcd dcba", "steps": "40"},
        "placement": {"prefill": "gpu:1", "decode": "gpu:0"}, "kv_extent": "blocks:4",
    }  # fmt: skip
    return write_json(folder / "own.yaml", scenario)


def test_a_scenario_with_files_of_its_own_runs_from_anywhere(
    tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = own_files(tmp_path / "case")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    relative = Path("..") / "case" / "own.yaml"
    assert ask("run", relative, "--run-out", "run.json").code == 0
    run = read(elsewhere / "run.json")
    assert run["n_prompt_tokens"] < len("abcd dcba") + 2  # some pieces were merged
    assert run["text"].startswith("abcd dcba")
    assert bytes.fromhex(run["text_hex"]).endswith(b"\n")
    assert ask("prove", relative, "--save-dir", "evidence").code == 0
    runs = read(elsewhere / "evidence" / "proof.json")["runs"]
    assert {"split", "single_device", "without_handoff_poisoned", "without_handoff_zeroed"} <= set(runs)
    assert sorted(each.name for each in (elsewhere / "evidence").iterdir()) == sorted(
        ["plan.json", "proof.json", "proof.txt", *(f"run-{name.replace('_', '-')}.json" for name in runs)]
    )
    scenario = read(path)
    for expect, code, result in (
        (run["tokens"][:5], 0, "passed"),
        (run["tokens"], 0, "passed"),
        ([*run["tokens"][:5], (run["tokens"][5] + 1) % 32], 1, "failed"),
        ([*run["tokens"], 7], 1, "failed"),
    ):
        write_json(path, scenario | {"expect": [str(token) for token in expect]})
        answer = ask("run", relative, "-o", "json")
        assert answer.code == code
        assert checks(answer.document["comparison"])["tokens_equal_reference"] == result


@pytest.mark.parametrize(("seed", "code"), [(WALKS, 0), (STOPS_EARLY, 0), (STOPS_AT_ONCE, 3)])
def test_a_walk_that_bos_ends_early_is_proved_by_the_passes_it_made(
    seed: int, code: int, tmp_path: Path, ask: Ask
) -> None:
    answer = ask("prove", own_files(tmp_path / "case", seed), "-o", "json")
    split = answer.document["runs"]["split"]
    assert split["stopped"] == ("steps" if seed == WALKS else "bos")
    assert split["passes"]["decode"] > 0 or seed == STOPS_AT_ONCE
    assert answer.code == code
    assert [row for row in answer.document["matrix"] if row["verdict"] != "caught"] == []


def test_null_is_unknown_and_nought_is_none(ask: Ask, tmp_path: Path) -> None:
    model = write_json(
        tmp_path / "config.json", {"model_type": "never_heard_of", "architectures": ["NeverForCausalLM"]}
    )
    answer = ask("admit", "two-gpu", "--model", model, "--prompt-tokens", "9", "-o", "json")
    assert answer.code == 3
    sizes = answer.document["inputs"]["model"]
    assert {sizes[name] for name in ("dim", "n_layers", "n_kv_heads", "parameters", "vocab_size")} == {None}
    shown = ask("model", "show", model, "--context", "64", "-o", "json").document
    assert shown["kv"]["by_context"] == {"64": {"window": None, "full": None}}
    known = ask("admit", "two-gpu", "-o", "json").document
    assert {entry["resident"]["layout_padding"] for entry in known["memory"]} == {0}
    unknown = ask("admit", "two-gpu-unknown", "-o", "json").document
    assert {entry["capacity_bytes"] for entry in unknown["memory"]} == {None}
    assert {entry["slack_bytes"] for entry in unknown["memory"]} == {None}
