"""Admit, run and prove on a checkpoint of the user's own: ids, tokenizers, refusals, proofs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import Ask, asker
from tests.hub_checkpoints import Hub, tensors_of, write_hub

FLEET = ("--fleet", "two-gpu-nvlink")
IDS = ("--prompt-ids", "5,17,80,1,33")


@pytest.fixture
def ask(capfd: pytest.CaptureFixture[str]) -> Ask:
    return asker(capfd)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_hub(tmp_path / "mine", Hub())


@pytest.fixture
def plan(ask: Ask, model: Path, tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    answer = ask("admit", *FLEET, "--model", model, *IDS, "--new-tokens", 6, "--plan-out", path)
    assert answer.code == 0
    assert "run it with: kvwaybill run" in answer.err
    return path


def scenario(tmp_path: Path, model: Path, **more: Any) -> Path:
    path = tmp_path / "mine.yaml"
    asked = {"schema": "kvwaybill/scenario/1", "fleet": "two-gpu-nvlink", "model": str(model)}
    asked |= {"workload": {"prompt_ids": [5, 17, 80, 1, 33], "new_tokens": 6}}
    path.write_text(json.dumps(asked | more))
    return path


def test_a_plan_is_run_and_every_row_matches(ask: Ask, plan: Path) -> None:
    answer = ask("run", plan, "-o", "json")
    assert answer.code == 0
    run = answer.document
    assert {row["verdict"] for row in run["comparison"]["rows"]} == {"match", "unwitnessed"}
    assert run["tokens"][:5] == [5, 17, 80, 1, 33]
    assert run["path"] == "dispatch"
    assert "in the checkpoint's own types and K and V in bf16" in run["limits"][0]
    assert run["text"] is None
    saved = plan.parent / "run.json"
    saved.write_text(json.dumps(run))
    assert ask("compare", plan, saved).code == 0


def test_other_ids_of_the_same_number_may_be_given_with_a_plan(ask: Ask, plan: Path) -> None:
    answer = ask("run", plan, "--prompt-ids", "1,2,3,4,5", "-o", "json")
    assert answer.code == 0
    assert answer.document["tokens"][:5] == [1, 2, 3, 4, 5]


def test_without_the_handoff_the_rows_are_missing(ask: Ask, plan: Path) -> None:
    answer = ask("run", plan, "--without", "handoff", "-o", "json")
    assert answer.code == 1
    rows = answer.document["comparison"]["rows"]
    assert [row["verdict"] for row in rows if row["phase"] == "handoff"] == ["missing", "missing"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--prompt-ids", "1,2"), "are 2 ids, the plan is for exactly 5"),
        (("--prompt-ids", "1,2,3,4,x"), "'x' is no token id"),
        (("--prompt-ids", ""), "is no token id"),
        (("--prompt-ids", "-1,2,3,4,5"), "is no token id"),
        (("--prompt-ids", "1,2,3,4,96"), "outside the vocabulary of 96"),
        (("--prompt-ids", "1,2,3,4,5", "--prompt", "x"), "give one of them"),
        (("--prompt", "hello"), "needs the checkpoint's tokenizer.json"),
        (("--path", "fused"), "fused runs llama2.c's own tensors only"),
        (("--threads", "2"), "not shared out"),
        (("--fast",), "needs the layout packed16"),
    ],
)
def test_what_cannot_be_asked_of_a_plan_is_told_with_code_2(
    ask: Ask, plan: Path, words: tuple[str, ...], message: str
) -> None:
    answer = ask("run", plan, *words)
    assert answer.code == 2
    assert message in answer.err


def test_a_count_is_priced_and_run_with_ids(ask: Ask, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "count.json"
    answer = ask("admit", *FLEET, "--model", model, "--prompt-tokens", 4, "--new-tokens", 3, "--plan-out", path)
    assert "--prompt-ids IDS (of 4 tokens)" in answer.err
    assert ask("run", path).code == 2
    assert ask("run", path, "--prompt-ids", "4,3,2,1").code == 0


def test_an_empty_prompt_is_no_id_of_somebody_elses_vocabulary(ask: Ask, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "empty.json"
    assert ask("admit", *FLEET, "--model", model, "--new-tokens", 3, "--plan-out", path).code == 0
    assert json.loads(path.read_text())["orders"]["workload"]["prompt_ids"] is None
    assert ask("run", path).code == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--prompt-ids", "5,96"), "id 96 is outside the vocabulary of 96"),
        (("--prompt-ids", "5", "--prompt-tokens", "1"), "give one of them"),
        (("--prompt", "x"), "--prompt-tokens N or --prompt-ids"),
    ],
)
def test_a_prompt_that_does_not_fit_is_told_by_admit(
    ask: Ask, model: Path, words: tuple[str, ...], message: str
) -> None:
    answer = ask("admit", *FLEET, "--model", model, *words)
    assert answer.code == 2
    assert message in answer.err


def test_ids_of_llama2c_models_begin_with_bos(ask: Ask) -> None:
    answer = ask("admit", *FLEET, "--prompt-ids", "5,6")
    assert answer.code == 2
    assert "begins with BOS" in answer.err
    assert ask("admit", *FLEET, "--prompt-ids", "1,6").code == 0


def test_types_that_are_converted_are_priced_and_refused_by_run(ask: Ask, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "wide.json"
    asked = ("--model", model, *IDS, "--new-tokens", 3, "--weights-dtype", "fp32")
    answer = ask("admit", *FLEET, *asked, "--plan-out", path)
    assert "it is for admission only" in answer.err
    answer = ask("run", path)
    assert answer.code == 2
    assert "leave --weights-dtype out" in answer.err


def test_a_checkpoint_that_is_gone_or_is_no_such_is_told_before_its_types(
    ask: Ask, plan: Path, model: Path, tmp_path: Path
) -> None:
    answer = ask("run", plan, "--model", "seeded-260K")
    assert answer.code == 2
    assert "another checkpoint than the plan was made for" in answer.err
    moved = model.rename(tmp_path / "moved")
    answer = ask("run", plan)
    assert answer.code == 2
    assert "say where it is with --model PATH" in answer.err
    assert ask("run", plan, "--model", moved).code == 0


@pytest.mark.parametrize("name", ["model.safetensors", "model.safetensors.index.json"])
def test_a_file_with_its_config_beside_is_the_folder(ask: Ask, name: str, tmp_path: Path) -> None:
    folder = write_hub(tmp_path / "m", Hub(), parts=1 if name == "model.safetensors" else 2)
    path = tmp_path / "file.json"
    answer = ask("admit", *FLEET, "--model", folder / name, *IDS, "--new-tokens", 2, "--plan-out", path)
    assert "run it with" in answer.err
    assert ask("run", path).code == 0


def test_a_checkpoint_that_changed_is_another(ask: Ask, plan: Path, model: Path) -> None:
    write_hub(model, Hub(), tensors_of(Hub(), seed=3))
    answer = ask("run", plan)
    assert answer.code == 2
    assert "another checkpoint than the plan was made for" in answer.err


@pytest.mark.parametrize(
    ("hub", "more"),
    [
        (Hub(), {"fleet": "two-gpu-staged", "kv_extent": "blocks:4"}),
        (Hub(family="qwen3", qk_norm=True, head_dim=8, dtype="fp32"), {"attention": "host", "kv_dtype": "fp16"}),
    ],
)
def test_the_split_of_a_users_own_model_is_proved(ask: Ask, hub: Hub, more: dict[str, Any], tmp_path: Path) -> None:
    answer = ask("prove", scenario(tmp_path, write_hub(tmp_path / "m", hub), **more), "-o", "json")
    assert answer.code == 0, answer.err
    proof = answer.document
    assert proof["verdict"] == "proved"
    verdicts = {row["sabotage"]: row["verdict"] for row in proof["matrix"]}
    assert len(verdicts) >= 20
    assert set(verdicts.values()) <= {"caught", "waived"}
    assert list(verdicts.values()).count("caught") >= 18


def test_a_scenario_with_ids_and_words_is_refused(ask: Ask, model: Path, tmp_path: Path) -> None:
    path = scenario(tmp_path, model, workload={"prompt_ids": [1], "prompt": "x", "new_tokens": 3})
    answer = ask("run", path)
    assert answer.code == 2
    assert "give one of the two" in answer.err


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    words = {"<unk>": 0, "</s>": 1, "hello": 2, "world": 3}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
    special = [{"id": number, "content": words} | flags for number, words in enumerate(("<unk>", "</s>"))]
    document = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "<unk>"},
    }  # fmt: skip
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(document))
    return path


def test_words_are_read_and_told_by_the_checkpoints_own_tokenizer(
    ask: Ask, model: Path, tokenizer: Path, tmp_path: Path
) -> None:
    pytest.importorskip("tokenizers", reason="the library tokenizers (extra models) is not installed")
    path = tmp_path / "p.json"
    asked = ("--model", model, "--tokenizer", tokenizer, "--prompt", "hello world hello", "--new-tokens", 3)
    assert ask("admit", *FLEET, *asked, "--plan-out", path).code == 0
    assert json.loads(path.read_text())["orders"]["workload"]["prompt_ids"] == [2, 3, 2]
    run = ask("run", path, "-o", "json").document
    assert run["text"].startswith("hello world hello")
    assert run["text"].endswith("\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no JSON in UTF-8"),
        ("{}", "is missing: no tokenizer.json"),
        ('{"model": {"type": "none"}}', "is not understood by the library"),
        ("[" * 100_000, "is no JSON in UTF-8"),
    ],
)
def test_a_file_that_is_no_tokenizer_is_refused(ask: Ask, model: Path, tmp_path: Path, text: str, message: str) -> None:
    pytest.importorskip("tokenizers", reason="the library tokenizers (extra models) is not installed")
    path = tmp_path / "tokenizer.json"
    path.write_text(text)
    answer = ask("admit", *FLEET, "--model", model, "--tokenizer", path, "--prompt", "hello")
    assert answer.code == 2
    assert message in answer.err


def test_a_missing_library_is_told_with_the_extra_to_install(
    ask: Ask, model: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    answer = ask("admit", *FLEET, "--model", model, "--tokenizer", tokenizer, "--prompt", "hello")
    assert answer.code == 3
    assert "kvwaybill[models]" in answer.err


def test_the_tokenizer_of_another_model_is_refused(ask: Ask, tokenizer: Path, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="the library tokenizers (extra models) is not installed")
    small = write_hub(tmp_path / "small", Hub(vocab=3))
    answer = ask("admit", *FLEET, "--model", small, "--tokenizer", tokenizer, "--prompt", "hello")
    assert answer.code == 2
    assert "the tokenizer of another model" in answer.err
