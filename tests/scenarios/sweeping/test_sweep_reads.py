"""Sweep files: every fault at its place, before anything is run."""

from __future__ import annotations

import copy
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from fleet.errors import DescriptionError
from scenarios.sweeping.cases import read_cases
from scenarios.sweeping.read_sweep import load_sweep, parse_sweep, sweep_names
from tests.command_line import Ask, asker, write_json
from tests.scenarios.sweeping.sweep_cases import ADMIT, SIMULATE, write
from tests.strategies import json_junk

HEAD = "schema: kvwaybill/sweep/1\nquestion: simulate\nbase: chat\n"


@pytest.fixture
def ask(capfd: pytest.CaptureFixture[str]) -> Ask:
    return asker(capfd)


def faults(text: str, folder: str = "") -> list[str]:
    with pytest.raises(DescriptionError) as caught:
        read_cases(parse_sweep(text, "s.yaml", folder))
    return str(caught.value).splitlines()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "s.yaml: is empty"),
        ("a: 1\n", "s.yaml:1:1 a no such field"),
        ("schema: kvwaybill/sweep/2\n", "s.yaml:1:9 schema 'kvwaybill/sweep/2' is not kvwaybill/sweep/1"),
        (HEAD, "nothing is varied"),
        (HEAD + "grid: {}\n", "s.yaml:4:7 grid wanted a mapping"),
        (HEAD + "grid: {seed: []}\n", "wanted a list of at least one value"),
        (HEAD + "grid: {seed: 4}\n", "wanted a list of at least one value"),
        (HEAD + "grid: {seed: [1, 2, 1]}\n", "s.yaml:4:21 grid.seed[2] '1' stands twice"),
        (HEAD + "grid: {name: [a]}\n", "are the base's own"),
        (HEAD + "grid: {'arrivals..rate': [1]}\n", "is no field"),
        (HEAD + "grid: {seed: [1]}\nlist: [{seed: 2}]\n", "is set by list, too"),
        (HEAD + "grid: {slo: [{ttft: 1 s}], slo.ttft: [2 s]}\n", "lies within slo"),
        (HEAD + "list: [{seed: 1}, {seed: 1}]\n", "s.yaml:4:19 list[1] is entry 1 once more"),
        (HEAD + "list: [seed]\n", "wanted a mapping {field: value}"),
        (HEAD + "grid: {sed: [1]}\n", "s.yaml:4:8 sed no such field; did you mean seed?"),
        (HEAD + "grid: {arrivals.rate: [10, fast]}\n", "s.yaml:4:28 arrivals.rate 'fast' is no decimal number"),
        (HEAD + "grid: {seed.low: [1]}\n", "s.yaml:4:8 seed.low seed is no mapping in the base"),
        (HEAD + "grid: {fleet: [hgx-h101]}\n", "hgx-h101"),
        (HEAD + "grid: {fleet: ['-']}\n", "s.yaml:4:16 fleet - is stdin"),
        (HEAD + "grid: {prefill.devices: ['gpu:0', 'gpu:99']}\n", "s.yaml:4:35 prefill 'gpu:99' is no device"),
        (HEAD + "grid: {decode.devices: ['gpu:0']}\n", "serves prefill already"),
        (HEAD + "grid: {trace: [none.csv], arrivals: [null]}\n", "trace stands beside"),
        (HEAD + "grid: {seed: [1]}\nslo: {ttft_p98: 1 s}\n", "did you mean ttft_p99"),
        (HEAD + "grid: {seed: [1]}\nslo: {ttft_p99: 200}\n", "s.yaml:5:17 slo.ttft_p99"),
        (HEAD + "grid: {seed: [1]}\nslo: {goodput: 1.5}\n", "s.yaml:5:16 slo.goodput"),
        (HEAD + "grid: {seed: [1]}\nslo: {devices: -4}\n", "is no number from 0 up"),
        (HEAD + "grid: {seed: [1]}\nobjectives: [speed]\n", "is no figure of question simulate"),
        (HEAD + "grid: {seed: [1]}\nobjectives: [devices, devices]\n", "devices stands twice"),
        (HEAD + "grid: {seed: [1]}\nobjectives: [cost_per_hour]\n", "needs prices"),
        (HEAD + "grid: {seed: [1]}\nprices: {h100-sxm-80: free}\n", "s.yaml:5:23 prices.h100-sxm-80"),
        (HEAD.replace("chat", "caht") + "grid: {seed: [1]}\n", "did you mean chat?"),
        (HEAD.replace("chat", "two-gpu") + "grid: {seed: [1]}\n", "s.yaml:3:7 base two-gpu"),
        (HEAD.replace("simulate", "guess") + "grid: {seed: [1]}\n", "is none of simulate, admit"),
        (HEAD + f"grid: {{seed: [{', '.join(map(str, range(400)))}], block_tokens: "
         f"[{', '.join(map(str, range(1, 400)))}]}}\n", "gives 159,600 cases"),
    ],
)  # fmt: skip
def test_a_fault_of_a_sweep_is_told_at_its_place(text: str, told: str) -> None:
    assert any(told in line for line in faults(text)), faults(text)


def test_all_faults_of_all_cases_are_told_at_once_and_each_once() -> None:
    text = HEAD + "grid:\n  arrivals.rate: [a, 1, b]\n  seed: [1, 2, x]\nslo: {ttft_p99: 1 s}\n"
    assert [line.split(" ")[0] for line in faults(text)] == ["s.yaml:5:19", "s.yaml:5:25", "s.yaml:6:16"]


def test_a_fault_of_some_cases_in_words_of_the_base_names_the_first_of_them() -> None:
    text = HEAD + "grid: {answers.most: [900, 1], seed: [1, 2]}\n"
    (told,) = faults(text)
    assert told.endswith("answers.least is more than most; in case 3 (answers.most: 1, seed: 1) and 1 more")


@pytest.mark.parametrize("field", ["fleet", "model", "trace"])
def test_a_file_that_is_not_there_is_told_at_the_value_that_names_it(field: str) -> None:
    drawn = "arrivals: [null], prompts: [null], answers: [null], " if field == "trace" else ""
    text = HEAD + f"grid: {{{drawn}{field}: [nowhere.bin]}}\n"
    assert [line.split(" ")[:2] for line in faults(text)] == [[f"s.yaml:4:{len(drawn) + len(field) + 11}", field]]
    assert f"{field}" in faults(HEAD + f"grid: {{{drawn}{field}: ['']}}\n")[0].split(" ")[1]


def test_many_values_are_compared_in_time_that_grows_with_their_number() -> None:
    """Each with each takes minutes for 100,000; the file of these is read in a second or two."""
    values = [[str(n)] for n in range(30_000)]
    sweep = parse_sweep(json.dumps(SIMULATE | {"list": [{"seed": "1"}], "grid": {"outages": values}}), "s.yaml", "")
    assert len(sweep.grid[0]) == 30_000


def test_requests_that_are_the_same_in_other_words_are_one_demand() -> None:
    same = {"fleet": "hgx-a100"}
    document = SIMULATE | {
        "grid": {"arrivals.requests": ["60"]},
        "list": [same, same | {"arrivals.rate": "60.0"}, same | {"seed": "0", "slo.ttft": "30000 us"}],
    }
    assert len({case.demand for case in read_cases(parse_sweep(json.dumps(document), "s.yaml", ""))[0]}) == 1


def test_a_fault_of_the_base_is_told_in_the_base(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("schema: kvwaybill/scenario/1\nfleet: two-gpu-nvlink\nattention: no\n")
    text = "schema: kvwaybill/sweep/1\nquestion: admit\nbase: base.yaml\ngrid: {kv_extent: [filled, allocated]}\n"
    assert [line.split(" ")[0] for line in faults(text, str(tmp_path))] == [f"{tmp_path}/base.yaml:3:12"]


def test_a_base_may_be_written_out_and_null_takes_a_field_away(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,10,3\n1,20,4\n")
    lengths = {"kind": "fixed", "value": "8"}
    base = {
        "schema": "kvwaybill/simulation-scenario/1", "fleet": "two-gpu-nvlink", "prefill": {"devices": "gpu:0"},
        "decode": {"devices": "gpu:1"}, "prompts": lengths, "answers": lengths,
        "arrivals": {"kind": "constant", "rate": "1", "requests": "2"},
    }  # fmt: skip
    away = {"trace": "t.csv", "arrivals": None, "prompts": None, "answers": None}
    document = {"schema": "kvwaybill/sweep/1", "question": "simulate", "base": base, "list": [{"seed": "1"}, away]}
    cases, files = read_cases(load_sweep(str(write(tmp_path, document))))
    assert [case.trace is not None for case in cases] == [False, True]
    assert len(files.traces) == 1
    assert cases[0].demand != cases[1].demand


def test_a_key_is_of_content_not_of_names(tmp_path: Path) -> None:
    """A renamed file is the same case, a changed one is another; SLOs, prices and objectives change no key."""
    from scenarios.sweeping.spec import Sweep  # the type alone

    def keys(document: Any) -> list[str]:
        sweep: Sweep = load_sweep(str(write(tmp_path, document)))
        return [case.key for case in read_cases(sweep)[0]]

    traces = {"a.csv": "0,10,3", "b.csv": "0,10,3", "c.csv": "0,10,4"}
    for name, line in traces.items():
        (tmp_path / name).write_text(f"arrived_at,num_prefill_tokens,num_decode_tokens\n{line}\n")
    drawn = dict.fromkeys(("arrivals", "prompts", "answers"))
    document = SIMULATE | {"grid": {}, "list": [{"trace": name} | drawn for name in traces]}
    del document["grid"]
    a, b, c = keys(document)
    assert a == b != c
    plain = keys(SIMULATE)
    assert len(set(plain)) == 4
    assert keys(SIMULATE | {"slo": {"ttft_p99": "1 s"}, "prices": {"x": "1"}, "objectives": ["devices"]}) == plain


@pytest.mark.parametrize("name", sweep_names())
def test_every_shipped_sweep_can_be_read(name: str) -> None:
    assert len(read_cases(load_sweep(name))[0]) > 1


@pytest.mark.parametrize("kind", ["fleet", "model", "trace", "tokenizer"])
def test_pipes_devices_and_folders_in_the_place_of_files_are_told(kind: str, tmp_path: Path) -> None:
    """A named pipe blocks who opens it; /dev/zero never ends."""
    os.mkfifo(tmp_path / "pipe")
    drawn = dict.fromkeys(("arrivals", "prompts", "answers")) if kind == "trace" else {}
    document = ADMIT if kind == "tokenizer" else SIMULATE | {"grid": {"seed": ["1"]}}
    for name in ("pipe", "/dev/zero", "."):
        with pytest.raises(DescriptionError):
            read_cases(load_sweep(str(write(tmp_path, document | {"list": [{kind: name} | drawn]}))))


FEW = settings(max_examples=25, deadline=None)
FIELDS = (
    "prefill",
    "prefill.devices",
    "arrivals",
    "arrivals.rate",
    "slo",
    "fleet",
    "model",
    "trace",
    "outages",
    "seed",
)


@FEW
@given(junk=json_junk)
def test_junk_as_the_value_of_any_field_is_a_fault_or_a_case(junk: Any) -> None:
    for name in FIELDS:
        with suppress(DescriptionError):
            read_cases(
                parse_sweep(json.dumps(SIMULATE | {"list": [{name: junk}], "grid": {"block_tokens": [8]}}), "s", "")
            )
    for name in ("fleet", "workload", "workload.prompt_tokens", "placement", "model", "tokenizer", "utilization"):
        with suppress(DescriptionError):
            read_cases(parse_sweep(json.dumps(ADMIT | {"grid": {name: [junk]}}), "s", ""))


@FEW
@given(junk=json_junk)
def test_junk_in_the_place_of_any_part_is_a_fault_or_a_sweep(junk: Any) -> None:
    for base in (SIMULATE, ADMIT):
        for name in (*base, "slo", "objectives", "prices", "list"):
            with suppress(DescriptionError):
                parse_sweep(json.dumps(copy.deepcopy(base) | {name: junk}), "s.yaml", "")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nowhere.yaml"], "no such file, and no shipped sweep"),
        (["."], "is a folder"),
        (["sweep.yaml", "--engine", "spark"], "there is local and dask"),
        (["sweep.yaml", "--engine", "dask"], "name it: --scheduler"),
        (["sweep.yaml", "--scheduler", "tcp://127.0.0.1:1"], "is of --engine dask"),
        (["sweep.yaml", "--engine", "dask", "--scheduler", "127.0.0.1"], "is no address"),
        (["sweep.yaml", "--jobs", "0"], "--jobs"),
        (["sweep.yaml", "--resume", "--fresh"], "keep one"),
        (["sweep.yaml", "--best"], "--best needs SLOs"),
        (["sweep.yaml", "--journal", ""], "--journal wants a file"),
        (["sweep.yaml", "--journal", "."], "the journal cannot be opened"),
        (["sweep.yaml", "--journal", "mine.txt"], "is no kvwaybill/sweep-journal/1; it is left as it is"),
        (["sweep.yaml", "--result-out", "no/where.json"], "cannot be written"),
        (["sweep.yaml", "--result-out", "x.jsonl", "--journal", "x.jsonl"], "they are two files"),
        (["sweep.yaml", "--result-out", "./sweep.yaml"], "names the sweep; they are two files"),
        (["two-gpu"], "is a scenario; sweep takes a sweep"),
        (["/dev/null"], "is not a regular file"),
    ],
)
def test_wrong_use_of_the_command_is_code_2_and_writes_nothing(
    arguments: list[str], told: str, tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_json(tmp_path / "sweep.yaml", ADMIT)
    (tmp_path / "mine.txt").write_text("my own words\nand more")
    answer = ask("sweep", *arguments)
    assert answer.code == 2
    assert told in answer.err
    assert not answer.out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.txt", "sweep.yaml"]
    assert (tmp_path / "mine.txt").read_text() == "my own words\nand more"
