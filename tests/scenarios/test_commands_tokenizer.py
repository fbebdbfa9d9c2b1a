"""The tokenizer of a plan: named by its digest, and no other may give its prompt a meaning."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from scenarios.documents import plan_id
from tests.checkpoint_files import Dims, tokenizer_bytes, write_checkpoint
from tests.command_line import Ask, Document, asker, write_json

PIECES = [(0.0, b"<unk>"), (0.0, b"<s>"), (0.0, b"</s>"), *((0.0, b"<0x%02X>" % byte) for byte in range(256))]


@pytest.fixture
def ask(capfd: pytest.CaptureFixture[str]) -> Ask:
    return asker(capfd)


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A request with a checkpoint and a tokenizer of its own; other.bin is another tokenizer that fits."""
    monkeypatch.chdir(tmp_path)
    write_checkpoint(tmp_path, Dims(vocab_size=259, seq_len=64), seed=3)
    (tmp_path / "tok.bin").write_bytes(tokenizer_bytes(PIECES))
    (tmp_path / "other.bin").write_bytes(tokenizer_bytes([*PIECES[:-1], (1.0, b"~")]))
    (tmp_path / "copy.bin").write_bytes((tmp_path / "tok.bin").read_bytes())
    return ["--fleet", "two-gpu-nvlink", "--model", "model.bin", "--steps", "12"]


def admitted(ask: Ask, *words: str) -> Document:
    answer = ask("admit", *words, "--plan-out", "plan.json", "-o", "json")
    assert answer.code == 0, answer.err
    return answer.document


def test_the_plan_names_the_digest_of_its_tokenizer(ask: Ask, words: list[str]) -> None:
    planned = admitted(ask, *words, "--tokenizer", "tok.bin", "--prompt", "ab")
    digest = hashlib.sha256(Path("tok.bin").read_bytes()).hexdigest()
    assert planned["inputs"]["tokenizer"] == {"path": "tok.bin", "digest": digest}
    assert ask("run", "plan.json").code == 0


def test_the_byte_tokenizer_has_neither_path_nor_digest(ask: Ask) -> None:
    planned = ask("admit", "two-gpu", "-o", "json").document
    assert planned["inputs"]["tokenizer"] == {"path": None, "digest": None}


def test_another_tokenizer_in_its_place_is_refused(ask: Ask, words: list[str]) -> None:
    admitted(ask, *words, "--tokenizer", "tok.bin", "--prompt", "ab")
    Path("tok.bin").write_bytes(Path("other.bin").read_bytes())
    answer = ask("run", "plan.json")
    assert (answer.code, answer.out) == (2, "")
    assert "tok.bin: tokenizer is another tokenizer than the plan was made with" in answer.err


def test_a_tokenizer_given_beside_a_plan_must_be_the_plans(ask: Ask, words: list[str]) -> None:
    admitted(ask, *words, "--tokenizer", "tok.bin", "--prompt", "ab")
    Path("tok.bin").unlink()
    assert ask("run", "plan.json", "--tokenizer", "copy.bin").code == 0
    for prompt in ([], ["--prompt", "cd"]):
        answer = ask("run", "plan.json", "--tokenizer", "other.bin", *prompt)
        assert answer.code == 2
        assert "other.bin: tokenizer is another tokenizer" in answer.err


def test_a_plan_from_a_count_takes_any_tokenizer_that_fits(ask: Ask, words: list[str]) -> None:
    admitted(ask, *words, "--prompt-tokens", "4")
    for tokenizer in ("tok.bin", "other.bin"):
        assert ask("run", "plan.json", "--tokenizer", tokenizer, "--prompt", "ab").code == 0


def test_the_embedded_model_has_its_byte_tokenizer_and_no_other(ask: Ask, words: list[str]) -> None:
    assert ask("admit", "two-gpu", "--plan-out", "plan.json").code == 0
    answer = ask("run", "plan.json", "--tokenizer", "tok.bin")
    assert answer.code == 2
    assert "tok.bin: tokenizer is another tokenizer" in answer.err


def test_sizes_that_are_not_the_checkpoints_are_refused(ask: Ask, words: list[str]) -> None:
    planned = admitted(ask, *words)
    planned["inputs"]["model"] |= {"vocab_size": 10**6, "seq_len": 1}
    write_json(Path("false.json"), planned | {"id": plan_id(planned)})
    answer = ask("run", "false.json")
    assert answer.code == 2
    assert "inputs.model.vocab_size" in answer.err
    assert "inputs.model.seq_len" in answer.err


@pytest.mark.parametrize("text", ["a\0b"])
def test_a_prompt_that_cannot_be_encoded_is_told_where_it_stands(ask: Ask, text: str, tmp_path: Path) -> None:
    answer = ask("admit", "two-gpu", "--prompt", text)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("error: command line: --prompt holds a zero byte")
    scenario = {"schema": "kvwaybill/scenario/1", "fleet": "two-gpu-nvlink", "workload": {"prompt": text}}
    path = write_json(tmp_path / "s.yaml", scenario)
    answer = ask("admit", path)
    assert answer.code == 2
    assert f"{path}:5:13 prompt holds a zero byte" in answer.err
    assert ask("admit", "two-gpu", "--plan-out", tmp_path / "plan.json").code == 0
    answer = ask("run", tmp_path / "plan.json", "--prompt", text)
    assert answer.code == 2
    assert answer.err.startswith("error: command line: --prompt holds a zero byte")


def test_an_unknown_device_is_told_where_it_stands(ask: Ask, tmp_path: Path) -> None:
    answer = ask("admit", "two-gpu", "--prefill", "host")
    assert answer.code == 2
    assert "command line: --prefill 'host' is not a device of fleet two-gpu-nvlink. It has gpu:0, gpu:1" in answer.err
    scenario = {"schema": "kvwaybill/scenario/1", "fleet": "two-gpu-nvlink", "placement": {"decode": "gpu:7"}}
    path = write_json(tmp_path / "s.yaml", scenario)
    answer = ask("admit", path)
    assert answer.code == 2
    assert f"{path}:5:13 decode 'gpu:7' is not a device of fleet two-gpu-nvlink; did you mean gpu:" in answer.err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("expect: []", "expect is empty, and an empty reference is equal to any walk"),
        ('model: ""', "model is an empty path"),
        ('tokenizer: ""', "tokenizer is an empty path"),
    ],
)
def test_an_empty_field_of_a_scenario_is_refused_at_its_line(ask: Ask, tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(f"schema: kvwaybill/scenario/1\nfleet: two-gpu-nvlink\n{line}\n")
    answer = ask("admit", path)
    assert (answer.code, answer.out) == (2, "")
    assert f"{path}:3:" in answer.err
    assert words in answer.err
