"""Traces of four formats are read; each fault of a line is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.errors import DescriptionError
from scenarios.simulation.read_spec import load_spec, parse_spec, simulation_names
from scenarios.simulation.traces import read_trace

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data" / "traffic"

GOOD = {
    "azure": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,48,10\n2023-11-16 18:17:04.0,31,8\n",
    "vidur": "arrived_at,num_prefill_tokens,num_decode_tokens\n1.5,48,10\n1.52004,31,8\n",
    "splitwise": "request_id,arrival_timestamp,prompt_size,token_size\n0,0.0,48,10\n1,0.02004,31,8\n",
    "mooncake": '{"timestamp": 0, "input_length": 48, "output_length": 10, "hash_ids": [7, 9]}\n'
    '{"timestamp": 20.04, "input_length": 31, "output_length": 8, "hash_ids": [7]}\n',
    "ours": '{"arrival_s": 0, "prompt_tokens": 48, "new_tokens": 10}\n'
    '{"arrival_s": 0.02004, "prompt_tokens": 31, "new_tokens": 8}\n',
}  # fmt: skip


@pytest.mark.parametrize("kind", GOOD)
def test_every_format_says_the_same(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "trace"
    path.write_text(GOOD[kind])
    found = read_trace(str(path))
    assert found.arrival.tolist() == [0, 20_040_000_000]
    assert (found.prompt.tolist(), found.out.tolist()) == ([48, 31], [10, 8])
    assert found.hashes.tolist() == ([0, 1, 0] if kind == "mooncake" else [])


def test_times_are_read_as_others_write_them(tmp_path: Path) -> None:
    """Floats of Python and pandas; Azure's times of 2024 with their zone."""
    path = tmp_path / "trace"
    path.write_text(HEAD + "1e-05,5,5\n0.30000000000000004,5,5\n1.,5,5\n1.5e+00,5,5\n")
    assert read_trace(str(path)).arrival.tolist() == [0, 299_990_000_000, 999_990_000_000, 1_499_990_000_000]
    path.write_text('{"arrival_s": 1e-05, "prompt_tokens": 4, "new_tokens": 1}\n')
    assert read_trace(str(path)).arrival.tolist() == [10_000_000]
    times = ("2024-05-10 00:00:00.009930+00:00", "2024-05-10 00:00:00.5Z", "2024-05-10 02:00:01+02:00")
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(f"{time},5,5\n" for time in times))
    assert read_trace(str(path)).arrival.tolist() == [0, 490_070_000_000, 990_070_000_000]


HEAD = "arrived_at,num_prefill_tokens,num_decode_tokens\n"
BAD = {
    "arrived_at,num_prefill_tokens\n1,2\n": "num_decode_tokens is missing",
    "a,b\n1,2\n": "is no trace that is known",
    HEAD + "2,5,5\n1,5,5\n": ":3:1 time is earlier",
    HEAD + "-1,5,5\n": "is no time from 0 up",
    HEAD + "1,0,5\n": "0 is no count of tokens",
    HEAD + "1,5,99999999\n": "99999999 is no count of tokens",
    HEAD + "1,5.5,5\n": "is no whole number of tokens",
    HEAD + "1,5\n": "has 2 cells",
    HEAD: "holds no requests",
    "": "holds no requests",
    '{"timestamp": 0, "input_length": 4}\n': "output_length is missing",
    '{"timestamp": 0, "input_length": 4, "output_length": 2, "hash_ids": 3}\n': "no list of block hashes",
    '{"timestamp": 0, "input_length": true, "output_length": 2}\n': "is no whole number of tokens",
    '{"timestamp": NaN, "input_length": 4, "output_length": 2}\n': "is no time",
    '{"timestamp"\n': "is no JSON object",
    "[" * 100_000: "is no trace that is known",
    "TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,4,4\n": "is no time like",
    "TIMESTAMP,ContextTokens,GeneratedTokens\n0001-01-01 00:00:00+05:00,4,4\n": "is no time like",
    HEAD + "0,5,5\n1e99,5,5\n": "is more than 26 days",
}


@pytest.mark.parametrize("text", BAD, ids=range(len(BAD)))
def test_a_bad_trace_is_told_in_words(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(DescriptionError) as caught:
        read_trace(str(path))
    assert BAD[text] in str(caught.value)


def test_every_fault_of_a_trace_is_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(HEAD + "1,0,5\n2,5,x\n")
    with pytest.raises(DescriptionError) as caught:
        read_trace(str(path))
    assert [fault.line for fault in caught.value.faults] == [2, 3]


@pytest.mark.parametrize("name", ["no-such-trace", ".", "a\0b"])
def test_a_trace_that_is_no_file_is_told_in_words(name: str) -> None:
    with pytest.raises(DescriptionError):
        read_trace(name)


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "n"), [("AzureLLMInferenceTrace_code.csv", 8819), ("mooncake_synthetic_trace.jsonl", 3993)]
)
def test_the_public_traces_are_read_whole(name: str, n: int) -> None:
    if not (SHARED / name).is_file():
        pytest.skip("the shared reference data is not beside the project")
    found = read_trace(str(SHARED / name))
    assert len(found.arrival) == n
    assert found.arrival[0] == 0


MINIMAL = """schema: kvwaybill/simulation-scenario/1
fleet: hgx-h100
prefill: {devices: gpu:0-3}
decode: {devices: gpu:4-7}
arrivals: {kind: poisson, rate: 4, requests: 10}
prompts: {kind: fixed, value: 100}
answers: {kind: fixed, value: 10}
"""
FAULTS = {
    "decode: {devices: gpu:4-7}\n": ("", "decode is missing"),
    "rate: 4": ("rate: -4", "'-4' is no decimal number"),
    "value: 100": ("value: 0", "'0' is no whole number"),
    "fleet: hgx-h100": ("flet: x", "flet no such field; did you mean fleet?"),
    "{devices: gpu:0-3}": ("{devices: gpu:0-3, max_seqs: 9, max_tokens: 8}", "max_tokens 8 is less than max_seqs 9"),
    "devices: gpu:4-7": ("devices: 'gpu:9-4'", "write the lower number first"),
    "schema": ("slo: {ttft: 5}\nschema", "slo.ttft"),
    "answers: {kind: fixed, value: 10}\n": ("", "answers missing (or name a trace)"),
    "fleet": ("trace: a.csv\nfleet", "give one or the other"),
    "fleet:": ("handoff: {by: layer, share: fair}\nfleet:", "simulated with share: queue only"),
}


@pytest.mark.parametrize("old", FAULTS)
def test_a_bad_simulation_file_is_told_in_words(old: str) -> None:
    new, words = FAULTS[old]
    assert old in MINIMAL
    with pytest.raises(DescriptionError) as caught:
        parse_spec(MINIMAL.replace(old, new, 1), "s.yaml", ".")
    assert words in str(caught.value)


def test_shipped_simulations_can_be_read() -> None:
    assert simulation_names() == ["chat", "code"]
    for name in simulation_names():
        assert load_spec(name).name == name
