"""Bad input, one case a line: the contract's code, clear words, nothing on stdout, nothing written, no traceback."""

from __future__ import annotations

import copy
import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleet.errors import BackendError
from scenarios.documents import plan_id
from tests.checkpoint_files import Dims, checkpoint_bytes, tokenizer_bytes, write_checkpoint
from tests.command_line import Ask, Document, asker, fleet, link, without, write_json
from tests.strategies import json_junk

SHORT = ["--prompt", "hey", "--steps", "9"]
NVLINK = ["--fleet", "two-gpu-nvlink"]
Make = Callable[[Path], list[str]]


@pytest.fixture
def ask(capfd: pytest.CaptureFixture[str]) -> Ask:
    return asker(capfd)


def checkpoint(change: Callable[[bytes], bytes]) -> Make:
    def make(folder: Path) -> list[str]:
        path = folder / "model.bin"
        path.write_bytes(change(checkpoint_bytes(Dims(), 0)[0]))
        return ["admit", *NVLINK, "--model", str(path)]

    return make


def header(**sizes: int) -> Make:
    """A checkpoint that states other sizes than it has."""
    values = dict(
        zip(("dim", "hidden", "layers", "heads", "kv_heads", "vocab", "seq_len"), Dims().header(), strict=True)
    )
    return checkpoint(lambda data: struct.pack("<7i", *(values | sizes).values()) + data[28:])


def config(**fields: Any) -> Make:
    return lambda folder: ["admit", *NVLINK, "--model", str(write_json(folder / "config.json", fields))]


def described(fleet_document: Document, *more: str) -> Make:
    return lambda folder: ["admit", "--fleet", str(write_json(folder / "fleet.yaml", fleet_document)), *more]


def scenario(text: str) -> Make:
    def make(folder: Path) -> list[str]:
        path = folder / "case.yaml"
        path.write_text(text)
        return ["admit", str(path)]

    return make


def tokenizer(data: bytes) -> Make:
    def make(folder: Path) -> list[str]:
        (folder / "tok.bin").write_bytes(data)
        return ["run", "two-gpu", *SHORT, "--tokenizer", str(folder / "tok.bin")]

    return make


def text_file(name: str, text: str, *arguments: str) -> Make:
    def make(folder: Path) -> list[str]:
        (folder / name).write_text(text)
        return [*arguments, str(folder / name)]

    return make


def words(*arguments: str) -> Make:
    return lambda folder: [part.format(here=folder) for part in arguments]


HEAD = "schema: kvwaybill/scenario/1\nfleet: two-gpu-nvlink\n"
CASES: dict[str, tuple[Make, int, str]] = {
    "truncated checkpoint": (checkpoint(lambda data: data[:-4]), 2, "truncated"),
    "truncated in its header": (checkpoint(lambda data: data[:20]), 2, "truncated"),
    "empty checkpoint": (checkpoint(lambda data: b""), 2, "is empty"),
    "oversized checkpoint": (checkpoint(lambda data: data + b"\0" * 8), 2, "8 trailing bytes"),
    "wrong magic": (checkpoint(lambda data: b"\x89PNG\r\n\x1a\n" + data), 2, "no llama2.c checkpoint"),
    "a text for a checkpoint": (checkpoint(lambda data: b"hello there, world"), 2, "not a model"),
    "GGUF": (checkpoint(lambda data: b"GGUF" + data), 2, "GGUF"),
    "llama2.c version 2": (checkpoint(lambda data: struct.pack("<Ii", 0x616B3432, 2) + data), 2, "int8"),
    "llama2.c version 9": (checkpoint(lambda data: struct.pack("<Ii", 0x616B3432, 9) + data), 2, "version 9"),
    "negative dim": (header(dim=-8), 2, "dim is -8"),
    "zero layers": (header(layers=0), 2, "n_layers is 0"),
    "absurd layers": (header(layers=2**31 - 1), 2, "n_layers is 2,147,483,647"),
    "absurd sequence": (header(seq_len=2**31 - 1), 2, "seq_len"),
    "heads that do not divide": (header(heads=3), 2, "n_heads"),
    "a folder without config.json": (words("admit", *NVLINK, "--model", "{here}"), 2, "without config.json"),
    "a device for a checkpoint": (words("admit", *NVLINK, "--model", "/dev/zero"), 2, "not a regular file"),
    "no such checkpoint": (words("admit", *NVLINK, "--model", "{here}/none.bin"), 2, "no such file"),
    "an encoder": (config(model_type="bert", architectures=["BertModel"]), 2, "not a decoder language model"),
    "an encoder and decoder": (config(model_type="t5", architectures=["T5Model"]), 2, "decoder language model"),
    "a config with a negative size": (
        config(model_type="llama", hidden_size=-1, num_hidden_layers=2, num_attention_heads=2, vocab_size=9),
        2, "hidden_size",
    ),
    "a prompt for a config": (
        lambda folder: [*config(model_type="llama", architectures=["LlamaForCausalLM"], hidden_size=64,
                                num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=99,
                                max_position_embeddings=64)(folder), "--prompt", "hey"], 2, "--prompt-tokens",
    ),
    "tokenizer of another vocabulary": (
        tokenizer(tokenizer_bytes([(0.0, b"a")] * 512)), 2, "another vocabulary: 512 pieces, seeded-260K has 259",
    ),
    "truncated tokenizer": (tokenizer(tokenizer_bytes([(0.0, b"a")] * 259)[:-3]), 2, "tok.bin"),
    "no tokenizer for another model": (
        lambda folder: ["run", "two-gpu", "--model", str(write_checkpoint(folder))], 2, "--tokenizer",
    ),
    "unknown device": (
        words("admit", "two-gpu", "--decode", "gpu:7"), 2, "command line: --decode 'gpu:7' is not a device of fleet",
    ),
    "unknown device of a scenario": (
        scenario(HEAD + "placement: {prefill: gpu:0, decode: gpu:9}\n"),
        2, "case.yaml:3:37 decode 'gpu:9' is not a device of fleet",
    ),
    "a device that is no id": (scenario(HEAD + "placement: {decode: 'gpu 0'}\n"), 2, "case.yaml:3:21 placement.decode"),
    "positions below the passes": (
        scenario(HEAD + "workload: {steps: 40, positions: 30}\n"),
        2, "case.yaml:3:34 positions 30 positions cannot hold 40",
    ),
    "a wrong share in a scenario": (scenario(HEAD + "utilization: 1.5\n"), 2, "case.yaml:3:14 utilization"),
    "a wrong flag beside a scenario": (
        words("admit", "two-gpu", "--batch", "0"), 2, "command line: --batch 0 is out of range",
    ),
    "an unknown field": (scenario(HEAD + "modle: x.bin\n"), 2, "case.yaml:3:1 modle no such field; did you mean model"),
    "an unknown fleet": (scenario("schema: kvwaybill/scenario/1\nfleet: two-gpu\n"), 2, "case.yaml:2:8 fleet"),
    "no scenario of that name": (words("run", "two-gpus"), 2, "two-gpu"),
    "no fleet of that name": (words("admit", "--fleet", "two-gpu-nvlnk"), 2, "two-gpu-nvlink"),
    "no question": (words("admit"), 2, "SCENARIO"),
    "a fleet with an unknown field": (described(fleet() | {"devcies": []}), 2, "did you mean devices"),
    "a fleet without a unit": (described(fleet("80")), 2, "capacity"),
    "a fleet for a scenario": (text_file("f.yaml", "schema: kvwaybill/fleet/1\n", "admit"), 2, "f.yaml: is a fleet"),
    "not YAML": (text_file("f.yaml", "a: [1, 2\n", "admit", "--fleet"), 2, "f.yaml:"),
    "not JSON": (text_file("p.json", '{"schema": ', "run"), 2, "p.json:1:12 not JSON"),
    "another document": (text_file("p.json", '{"schema": "kvwaybill/run/1"}', "run"), 2, "p.json: is a run; run"),
    "a later schema": (text_file("p.json", '{"schema": "kvwaybill/plan/2"}', "explain"), 2, "reads number 1"),
    "a folder for a plan": (words("explain", "{here}"), 2, "cannot be read"),
    "a device for a plan": (words("explain", "/dev/zero"), 2, "is a device"),
    "steps and new tokens": (words("admit", "two-gpu", "--steps", "9", "--new-tokens", "3"), 2, "--new-tokens"),
    "negative steps": (words("admit", "two-gpu", "--steps", "-1"), 2, "--steps -1 is out of range"),
    "more new tokens than positions": (words("admit", "two-gpu", "--new-tokens", "999"), 2, "use 216 new tokens"),
    "a prompt and its count": (words("admit", "two-gpu", "--prompt", "x", "--prompt-tokens", "9"), 2, "not both"),
    "an extent of no block": (words("admit", "two-gpu", "--kv-extent", "blocks:0"), 2, "--kv-extent 'blocks:0'"),
    "an extent twice": (words("admit", "two-gpu", "--kv-extent", "filled", "--block-size", "9"), 2, "keep one"),
    "an unknown layout": (words("admit", "two-gpu", "--layout", "spiral"), 2, "--layout 'spiral' is unknown"),
    "an unknown type": (words("admit", "two-gpu", "--kv-dtype", "int3"), 2, "--kv-dtype 'int3' is unknown"),
    "an unknown mode": (words("run", "two-gpu", "--attention", "both"), 2, "--attention 'both' is unknown"),
    "a share above 1": (words("admit", "two-gpu", "--utilization", "1.01"), 2, "--utilization 1.01"),
    "several GPUs a worker": (words("admit", "two-gpu", "--tp", "2"), 2, "tensor-parallel degree 2 in 1 stage takes 2"),
    "an unknown backend": (words("run", "two-gpu", "--backend", "abacus"), 2, "'abacus' is unknown; use cupy, numba"),
    "a backend that is not here": (words("run", "two-gpu", "--backend", "cupy"), 3, "cupy"),
    "an unknown sabotage": (words("run", "two-gpu", "--without", "decode"), 2, "--without decode"),
    "no folder for the plan": (words("admit", "two-gpu", "--plan-out", "{here}/none/p.json"), 2, "cannot be written"),
    "a folder as the plan": (words("admit", "two-gpu", "--plan-out", "{here}"), 2, "a folder; name a file"),
    "a file as a folder": (words("run", "two-gpu", "--run-out", "/dev/null/r.json"), 2, "cannot be written"),
    "no evidence folder": (words("prove", "two-gpu", "--save-dir", "/dev/null/x"), 2, "--save-dir cannot be made"),
    "evidence in a file": (words("prove", "two-gpu", "--save-dir", "/dev/null"), 2, "stands there; name a folder"),
    "a report of a folder": (words("report", "{here}"), 2, "is a folder; name a file"),
    "one plan of two fleets": (words("admit", *NVLINK, *NVLINK, "--plan-out", "{here}/p.json"), 2, "one fleet"),
    "stdin twice": (words("compare", "-", "-"), 2, "stdin"),
    "batch at run": (words("run", "two-gpu", "--batch", "2"), 2, "--batch"),
    "an unknown subject": (words("scenario", "show", "tow-gpu"), 2, "two-gpu"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_bad_input_has_its_code_and_clear_words_and_leaves_nothing(case: str, tmp_path: Path, ask: Ask) -> None:
    make, code, told = CASES[case]
    arguments = make(tmp_path)
    before = sorted(os.listdir(tmp_path))
    answer = ask(*arguments)
    assert answer.code == code
    assert told in answer.err
    assert answer.out == ""
    assert sorted(os.listdir(tmp_path)) == before
    lines = answer.err.splitlines()
    assert len(lines) <= 3
    assert all(len(line) < 500 for line in lines)


def test_all_faults_of_a_scenario_are_told_in_the_order_of_the_file(tmp_path: Path, ask: Ask) -> None:
    path = tmp_path / "case.yaml"
    path.write_text(HEAD + "nmae: x\nattention: both\nworkload: {steps: many}\nkv_extent: blocks:0\n")
    answer = ask("run", path)
    assert answer.code == 2
    assert [line.split()[0].rsplit(":", 2)[1] for line in answer.err.splitlines()] == ["3", "4", "5", "6"]


def test_no_route_is_a_refusal_and_nothing_is_run(tmp_path: Path, ask: Ask) -> None:
    path = write_json(tmp_path / "fleet.yaml", without(fleet(), ("host", "gpu:1")))
    answer = ask("run", "two-gpu", "--fleet", path, "-o", "json")
    assert answer.code == 1
    assert [reason["code"] for reason in answer.document["reasons"]] == ["NO_ROUTE"]
    assert "nothing was run" in answer.err


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_warned_of_by_tensor(value: float, tmp_path: Path, ask: Ask) -> None:
    data = bytearray(checkpoint_bytes(Dims(seq_len=32), 0)[0])
    data[28 + 8 : 28 + 12] = struct.pack("<f", value)
    model = tmp_path / "model.bin"
    model.write_bytes(bytes(data))
    assert ask("admit", *NVLINK, "--model", model, "--steps", "6", "--plan-out", tmp_path / "p.json").code == 0
    answer = ask("run", tmp_path / "p.json", "-o", "json")
    assert answer.code in (0, 3)
    assert "warning: token_embedding holds 1 NaN" in answer.err or "1 infinite" in answer.err
    assert any("token_embedding" in words for words in answer.document["warnings"])


@pytest.fixture
def plan(tmp_path: Path, ask: Ask) -> Document:
    assert ask("admit", "two-gpu", *SHORT, "--plan-out", tmp_path / "plan.json").code == 0
    document: Document = json.loads((tmp_path / "plan.json").read_text())
    return document


@pytest.mark.parametrize("command", [["run"], ["explain"], ["compare", "{plan}"]], ids=lambda line: line[0])
def test_a_plan_edited_by_hand_is_refused_everywhere(
    command: list[str], plan: Document, tmp_path: Path, ask: Ask
) -> None:
    plan["waybill"][0]["bytes"] += 4
    edited = write_json(tmp_path / "edited.json", plan)
    answer = ask(*(word.format(plan=tmp_path / "plan.json") for word in command), edited)
    assert answer.code == 2
    assert "id does not fit the content: the plan was edited by hand" in answer.err


def test_a_plan_is_run_with_its_own_files_only(tmp_path: Path, ask: Ask) -> None:
    model = write_checkpoint(tmp_path, Dims(seq_len=32), seed=1)
    out = tmp_path / "plan.json"
    assert ask("admit", *NVLINK, "--model", model, "--steps", "6", "--plan-out", out).code == 0
    other = tmp_path / "other"
    other.mkdir()
    write_checkpoint(other, Dims(seq_len=32), seed=2)
    answer = ask("run", out, "--model", other / "model.bin")
    assert answer.code == 2
    assert "another checkpoint than the plan was made for" in answer.err
    assert ask("run", out, "--fleet", "two-gpu-pcie").code == 2
    write_checkpoint(tmp_path, Dims(seq_len=32), seed=2)  # the file itself changed after the plan was made
    assert ask("run", out).code == 2
    model.unlink()
    assert ask("run", out).code == 2


PRICED_ONLY = [
    (["--batch", "2"], "batch 2"),
    (["--kv-dtype", "fp16"], "kv in fp16"),
    (["--weights-dtype", "bf16"], "weights in bf16"),
]


@pytest.mark.parametrize(("flags", "told"), PRICED_ONLY, ids=[flags[0] for flags, _ in PRICED_ONLY])
def test_what_is_priced_and_not_computed_is_refused_in_words_by_run(
    flags: list[str], told: str, tmp_path: Path, ask: Ask
) -> None:
    out = tmp_path / "plan.json"
    assert ask("admit", "two-gpu", *SHORT, *flags, "--plan-out", out).code == 0
    answer = ask("run", out, "--run-out", tmp_path / "run.json")
    assert answer.code == 2
    assert told in answer.err
    assert f"admit with {flags[0]}" in answer.err
    assert not (tmp_path / "run.json").exists()


def test_all_that_cannot_be_computed_is_told_at_once(tmp_path: Path, ask: Ask) -> None:
    flags = [flag for flags, _ in PRICED_ONLY for flag in flags]
    assert ask("admit", "two-gpu", *SHORT, *flags, "--plan-out", tmp_path / "plan.json").code == 0
    answer = ask("run", tmp_path / "plan.json")
    assert answer.code == 2
    assert all(told in answer.err for _, told in PRICED_ONLY)


BROKEN: list[tuple[str, str, list[str]]] = [
    ("scenarios.planning", "make_plan", ["admit", "two-gpu"]),
    ("scenarios.runner", "run_and_compare", ["run", "two-gpu", *SHORT]),
    ("scenarios.prove", "prove", ["prove", "two-gpu"]),
    ("scenarios.compare", "compare", ["compare", "{plan}", "{plan}"]),
    ("scenarios.explain", "explain", ["explain", "{plan}"]),
    ("fleet.load", "load_fleet", ["fleet", "check", "two-gpu-nvlink"]),
]


@pytest.mark.parametrize(("module", "name", "arguments"), BROKEN, ids=[name for _, name, _ in BROKEN])
@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (RuntimeError("a bug"), 4, "internal error: RuntimeError: a bug"),
        (AssertionError(), 4, "internal error: AssertionError"),
        (BackendError("the device fell off the bus"), 4, "error: the device fell off the bus"),
        (MemoryError(), 4, "out of memory"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_what_breaks_never_reads_as_no(
    module: str, name: str, arguments: list[str], error: BaseException, code: int, told: str,
    plan: Document, tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def broken(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(f"{module}.{name}", broken)
    answer = ask(*(word.format(plan=tmp_path / "plan.json") for word in arguments))
    assert answer.code == code
    assert told in answer.err
    assert answer.out == ""
    assert len(answer.err.splitlines()) == 1


def test_a_write_that_is_interrupted_leaves_what_stood_there(
    tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plan.json").write_text("what stood there")

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    assert ask("admit", "two-gpu", "--plan-out", tmp_path / "plan.json").code == 130
    assert os.listdir(tmp_path) == ["plan.json"]
    assert (tmp_path / "plan.json").read_text() == "what stood there"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes on this system")
def test_ctrl_c_ends_a_process_with_130(plan: Document, tmp_path: Path) -> None:
    """The process is caught while it reads a pipe that we hold open; nothing is timed."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background hands on a deaf ear
    child = subprocess.Popen(
        [sys.executable, "-m", "scenarios.cli", "compare", str(tmp_path / "plan.json"), str(pipe)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    signal.signal(signal.SIGINT, before)
    with open(pipe, "wb"):  # opens when the other end does
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=300)
    assert child.returncode == 130
    assert out == ""
    assert err == "interrupted\n"


GONE = object()


def places(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Every place of a document, of each list only its first two."""
    inner = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    return [found for key, each in inner for found in ((*path, key), *places(each, (*path, key)))]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(draw=st.data())
def test_no_value_in_a_plan_that_was_signed_anew_breaks_a_command(
    draw: st.DataObject, plan: Document, tmp_path: Path, ask: Ask
) -> None:
    """A plan from anybody is admitted work, a wrong file or a fault of the device; never an internal error."""
    hostile = copy.deepcopy(plan)
    *way, last = draw.draw(st.sampled_from([place for place in places(plan) if place != ("schema",)]))
    here: Any = hostile
    for step in way:
        here = here[step]
    value = draw.draw(st.one_of(json_junk, st.just(GONE)))
    if value is GONE:
        del here[last]
    else:
        here[last] = value
    hostile["id"] = plan_id(hostile)
    path = write_json(tmp_path / "hostile.json", hostile)
    for arguments in (["explain", path], ["compare", tmp_path / "plan.json", path], ["run", path]):
        answer = ask(*arguments)
        assert "internal error" not in answer.err


def test_a_link_to_a_device_that_is_not_described_is_told(tmp_path: Path, ask: Ask) -> None:
    described_twice = fleet()
    described_twice["links"].append(link("gpu:0", "gpu:5"))
    answer = ask("fleet", "check", write_json(tmp_path / "fleet.yaml", described_twice))
    assert answer.code == 2
    assert "gpu:5" in answer.err
