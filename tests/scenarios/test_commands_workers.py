"""Workers, engines and launch lines by the command line: plans, refusals in words, documents that agree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scenarios.documents import plan_id
from tests.command_line import Ask, Document, asker, write_json

CONFIG: Document = {
    "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_size": 256, "intermediate_size": 512,
    "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32, "vocab_size": 1000,
    "max_position_embeddings": 8192, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
ASKED = ("--fleet", "hgx-h100", "--isl", "1000", "--osl", "100")


@pytest.fixture
def ask(capfd: pytest.CaptureFixture[str]) -> Ask:
    return asker(capfd)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_json(tmp_path / "config.json", CONFIG)


@pytest.fixture
def plan(tmp_path: Path, model: Path, ask: Ask) -> Path:
    path = tmp_path / "plan.json"
    split = ("--prefill", "gpu:0-1", "--decode", "gpu:2,gpu:3,gpu:4,gpu:5")
    assert ask("admit", *ASKED, "--model", model, *split, "--plan-out", path).code == 0
    return path


def read(path: Path) -> Document:
    document: Document = json.loads(path.read_text())
    return document


def test_a_plan_of_workers_says_who_holds_what_and_why_nobody_runs_it(plan: Path, ask: Ask) -> None:
    document = read(plan)
    assert document["orders"] is None
    assert "nothing is split in the executor" in document["not_run"][0]
    assert [rank["device"] for rank in document["workers"]["prefill"]["ranks"]] == ["gpu:0", "gpu:1"]
    assert {entry["device"] for entry in document["memory"]} == {f"gpu:{n}" for n in range(6)}
    moved = [row for row in document["waybill"] if row["phase"] == "handoff"]
    assert sum(row["bytes"] for row in moved) == document["handoff"]["bytes"] == 4 * 4 * 64 * 2 * 1000
    assert {(row["src"], row["dst"]) for row in moved} == {
        ("gpu:0", "gpu:2"), ("gpu:0", "gpu:3"), ("gpu:1", "gpu:4"), ("gpu:1", "gpu:5"),
    }  # fmt: skip
    answer = ask("run", plan)
    assert answer.code == 2
    assert "nothing is split in the executor" in answer.err


def test_every_figure_of_a_plan_of_workers_follows_from_its_parts(plan: Path, ask: Ask) -> None:
    answer = ask("explain", plan, "-o", "json")
    assert answer.code == 0
    assert all(derivation["follows"] for derivation in answer.document["derivations"])
    assert ask("explain", plan, "gpu:3").code == 0
    assert "KV heads" in ask("admit", *ASKED, "--model", plan.parent / "config.json", "--tp", "2").out


@pytest.mark.parametrize("edit", ["bytes", "weights"])
def test_a_falsified_plan_of_workers_does_not_follow(plan: Path, tmp_path: Path, ask: Ask, edit: str) -> None:
    document = read(plan)
    if edit == "bytes":
        row = next(row for row in document["waybill"] if row["phase"] == "handoff")
        row["bytes"] += 2
        row["legs"][0]["bytes"] += 2
    else:
        document["workers"]["decode"]["ranks"][1]["weights_bytes"] += 8
    forged = write_json(tmp_path / "forged.json", document | {"id": plan_id(document)})
    assert ask("explain", forged).code == 1


def test_orders_beside_not_run_are_refused(tmp_path: Path, ask: Ask) -> None:
    path = tmp_path / "plan.json"
    assert ask("admit", "two-gpu", "--plan-out", path).code == 0
    document = read(path) | {"not_run": ["made up"]}
    forged = write_json(tmp_path / "forged.json", document | {"id": plan_id(document)})
    answer = ask("explain", forged)
    assert answer.code == 2
    assert "not_run" in answer.err


def test_workers_of_one_rank_have_the_very_plan_of_single_devices(model: Path, ask: Ask) -> None:
    single = ask("admit", *ASKED, "--model", model, "-o", "json").document
    degrees = ask("admit", *ASKED, "--model", model, "-o", "json", "--tp", "1", "--pp", "1").document
    assert degrees["id"] == single["id"]


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--tp", "3"), "--tp 8 query heads"),
        (("--prefill", "gpu:0-1", "--decode", "gpu:1-2"), "gpu:1 is in both workers"),
        (("--prefill", "gpu:0", "--tp", "2"), "names 1 device"),
        (("--prefill", "gpu:3-0"), "runs from 3 to 0"),
        (("--prefill", "gpu:0,gpu:9"), "'gpu:9' is not a device"),
        (("--tp", "2", "--decode-tp", "4", "--prefill-tp", "2"), "--decode-tp 4, but --tp says 2"),
        (("--tp", "0"), "out of range"),
        (("--tp", "8"), "of hgx-h100 are free"),
        (("--prefill-pp", "5"), "pipeline stages for 4 layers"),
        (("--prefill", "gpu:0-1", "--attention", "host"), "--attention host"),
        (("--engine", "pigeon"), "'pigeon' is unknown"),
        (("--engine", "vllm-nixl", "--kv-extent", "filled"), "keep one"),
        (("--engine-version", "0.9"), "give --engine"),
        (("--engine", "sglang", "--prefix-hit", "4"), "was not read"),
        (("--prefix-hit", "1001"), "use 0 to 1000"),
        (("--kv-buffer", "disk"), "use device or host"),
        (("--available-kv-cache-memory", "1 GiB"), "--engine-args"),
    ],
)
def test_what_cannot_be_asked_is_code_2_with_its_flag(model: Path, ask: Ask, flags: tuple[str, ...], told: str) -> None:
    answer = ask("admit", *ASKED, "--model", model, *flags)
    assert (answer.code, answer.out) == (2, "")
    assert told in answer.err


def test_an_engine_sets_the_extent_and_says_what_it_moves(model: Path, ask: Ask) -> None:
    answer = ask("admit", *ASKED, "--model", model, "--engine", "vllm-nixl", "--engine-version", "9.9", "-o", "json")
    document = answer.document
    assert answer.code == 0
    assert document["inputs"]["workload"]["kv_extent"] == "blocks:16"
    moved = document["transfer"]
    assert moved["moved_bytes"] == document["handoff"]["bytes"] == 63 * 16 * 4 * 128 * 2 * 2
    assert moved["descriptors"] == document["handoff"]["copies"] == 63 * 4 * 2
    assert [held["device"] for held in moved["in_flight"]] == ["gpu:0", "gpu:1"]
    assert any("9.9 was not compared" in note for note in moved["notes"])
    assert "In flight" in ask("admit", *ASKED, "--model", model, "--engine", "vllm-nixl").out


def test_a_plan_of_whole_blocks_by_an_engine_can_be_run_and_one_with_a_prefix_cannot(tmp_path: Path, ask: Ask) -> None:
    path = tmp_path / "plan.json"
    assert ask("admit", "two-gpu", "--engine", "vllm-nixl", "--plan-out", path).code == 0
    assert ask("run", path).code == 0
    assert ask("admit", "two-gpu", "--engine", "vllm-nixl", "--prefix-hit", "16", "--plan-out", path).code == 0
    refused = ask("run", path)
    assert refused.code == 2
    assert "empty caches" in refused.err
    assert ask("explain", path).code == 0


SERVE = """\
# two workers of one model
CUDA_VISIBLE_DEVICES=0 vllm serve {model} --tensor-parallel-size 2 --max-model-len 4096 --max-num-seqs 3 \\
  --gpu-memory-utilization 0.8 --kv-transfer-config '{{"kv_connector": "NixlConnector", "kv_role": "kv_producer"}}' &
vllm serve {model} -tp 4 --max-model-len 4096 --max-num-seqs 3 --gpu-memory-utilization 0.8 --odd-flag 7 \\
  --kv-transfer-config '{{"kv_connector": "NixlConnector", "kv_role": "kv_consumer"}}'
"""


@pytest.fixture
def serve(tmp_path: Path, model: Path) -> Path:
    path = tmp_path / "serve.sh"
    path.write_text(SERVE.format(model=model))
    return path


def test_launch_lines_are_the_question_and_the_budget(serve: Path, ask: Ask) -> None:
    answer = ask("admit", *ASKED, "--engine-args", serve, "-o", "json")
    document = answer.document
    assert answer.code == 0
    work = document["inputs"]["workload"]
    assert (work["positions"], work["batch"], document["inputs"]["utilization"]) == (4096, 3, "0.8")
    assert [document["workers"][phase]["tensor_parallel"] for phase in ("prefill", "decode")] == [2, 4]
    assert document["transfer"]["engine"] == "vllm-nixl"
    assert any("--odd-flag: not understood" in words for words in document["warnings"])
    for launch in document["launch"]:
        assert launch["prints"] == []
        assert "captured graphs" in launch["unknown"][0]
        assert launch["pool_tokens"]["least"] == 0 < launch["pool_tokens"]["most"]


def test_given_the_engines_memory_its_lines_are_exact(serve: Path, ask: Ask) -> None:
    given = ("--available-kv-cache-memory", "1073741824 B")
    answer = ask("admit", *ASKED, "--engine-args", serve, *given, "-o", "json")
    prefill, decode = (launch["prints"] for launch in answer.document["launch"])
    # A rank of two holds two of four heads: 4 layers x 2 heads x 64 x 2 B = 1,024 B a token.
    assert prefill == [
        "GPU KV cache size: 1,048,576 tokens", "Maximum concurrency for 4,096 tokens per request: 256.00x",
    ]  # fmt: skip
    assert decode[0] == "GPU KV cache size: 2,097,152 tokens"
    rounded = ask("admit", *ASKED, "--engine-args", serve, "--available-kv-cache-memory", "1.00 GiB", "-o", "json")
    assert rounded.document["launch"][0]["prints"] == []
    assert "should print" in ask("admit", *ASKED, "--engine-args", serve, *given).out


@pytest.mark.parametrize(
    "line",
    [
        "vllm serve {} --max-model-len 4096 --num-gpu-blocks-override 100",
        "python -m sglang.launch_server --model-path {} --context-length 4096 --max-total-tokens 8192",
    ],
)
def test_a_pool_that_a_flag_sets_is_not_priced_by_memory(tmp_path: Path, model: Path, ask: Ask, line: str) -> None:
    serve = tmp_path / "serve.sh"
    serve.write_text(line.format(model))
    asked = ("admit", *ASKED, "--engine-args", serve, "--available-kv-cache-memory", "1024 MiB")
    (launch,) = ask(*asked, "-o", "json").document["launch"]
    nobody_knows = {"least": None, "most": None}
    assert (launch["pool_tokens"], launch["max_concurrency"], launch["prints"]) == (nobody_knows, nobody_knows, [])
    assert "sets it in place of memory" in launch["unknown"][0]
    answer = ask(*asked)
    assert (answer.code, "between unknown and unknown tokens" in answer.out) == (0, True)


def test_our_flags_stand_in_place_of_launch_lines_and_the_plan_says_so(serve: Path, ask: Ask) -> None:
    answer = ask("admit", *ASKED, "--engine-args", serve, "--batch", "1", "--kv-extent", "filled", "-o", "json")
    document = answer.document
    assert answer.code == 0
    assert document["inputs"]["workload"]["batch"] == 1
    assert document["transfer"]["engine"] is None
    assert any(words.startswith("batch: by its own flag, in place of 3") for words in document["defaults"])


@pytest.mark.parametrize(
    ("old", "new", "code", "told"),
    [
        ("-tp 4", "-tp 4 --tensor-parallel-size 2", 2, "keep one"),
        ("--odd-flag 7", "--kv-cache-dtype fp8", 2, "one plan has one"),
        ("--odd-flag 7", "--block-size 24", 2, "neither divides the other"),
        ("--odd-flag 7", "--block-size 0", 2, "is no count"),
        ("--odd-flag 7", "--enable-expert-parallel", 3, None),
        ("vllm serve", "echo", 2, "holds no serving command"),
    ],
)
def test_launch_lines_that_contradict_or_go_beyond_are_told(
    serve: Path, ask: Ask, old: str, new: str, code: int, told: str | None
) -> None:
    serve.write_text(serve.read_text().replace(old, new))
    answer = ask("admit", *ASKED, "--engine-args", serve)
    assert answer.code == code
    if told is None:
        assert "ENGINE_UNKNOWN" in answer.out
    else:
        assert told in answer.err


@pytest.mark.parametrize("path", ["/dev/zero", "absent.sh", "."])
def test_what_is_no_text_file_is_code_2(ask: Ask, path: str) -> None:
    answer = ask("admit", *ASKED, "--engine-args", path)
    assert (answer.code, answer.out) == (2, "")


def test_the_page_of_engines_has_a_row_for_each() -> None:
    from planner.engines import ENGINES

    page = (Path(__file__).parents[2] / "docs" / "engines.md").read_text()
    rows: dict[str, Any] = {line.split("`")[1]: line for line in page.splitlines() if line.startswith("| `")}
    for name, engine in ENGINES.items():
        assert name in rows
        assert engine.direction in rows[name]


def test_a_picture_marks_every_rank_and_what_each_link_carries(plan: Path, ask: Ask) -> None:
    answer = ask("fleet", "show", "hgx-h100", "--plan", plan)
    assert answer.code == 0
    assert "gpu:0,gpu:1 to gpu:2,gpu:3,gpu:4,gpu:5" in answer.out
    drawn = ask("fleet", "show", "hgx-h100", "--plan", plan, "-o", "svg").out
    assert "KV 1,024,000 B in 16 copies" in drawn  # gpu:0 to the switch: two ranks of decode
    assert "KV 512,000 B in 8 copies" in drawn  # the switch to gpu:2


def test_a_scenario_places_workers_by_range_and_list(tmp_path: Path, model: Path, ask: Ask) -> None:
    path = tmp_path / "case.yaml"
    path.write_text(
        "schema: kvwaybill/scenario/1\nname: case\nfleet: hgx-h100\nmodel: config.json\n"
        "workload: {prompt_tokens: 100, new_tokens: 9}\nplacement: {prefill: gpu:0-1, decode: 'gpu:4,gpu:6'}\n"
    )
    answer = ask("admit", path, "-o", "json")
    assert answer.document["placement"] == {"prefill": "gpu:0,gpu:1", "decode": "gpu:4,gpu:6"}
    assert ask("run", path).code == 2


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (("workers", "decode"), {"ranks": []}),
        (("workers",), []),
        (("transfer", "in_flight"), [{"device": 7}]),
        (("inputs", "engine"), {"prefix_hit_tokens": "many"}),
        (("waybill", 7, "part"), {"layers": 0}),
        (("not_run",), {"a": 1}),
        (("placement", "prefill"), "gpu:0,,gpu:1"),
    ],
)
def test_parts_of_a_hostile_plan_are_faults_and_never_a_crash(
    plan: Path, tmp_path: Path, ask: Ask, at: tuple[Any, ...], value: Any
) -> None:
    document = read(plan)
    place: Any = document
    for step in at[:-1]:
        place = place[step]
    place[at[-1]] = value
    forged = write_json(tmp_path / "forged.json", document | {"id": plan_id(document)})
    for command in ("explain", "run"):
        answer = ask(command, forged)
        assert answer.code == 2
        assert str(at[0]) in answer.err
