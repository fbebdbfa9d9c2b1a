"""`kvwaybill simulate`: the shipped simulations, records, bad input and refusals."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scenarios.documents import write_lines
from tests.command_line import Ask, asker

GOLDEN = Path(__file__).resolve().parent / "golden"


@pytest.fixture
def ask(capfd: pytest.CaptureFixture[str]) -> Ask:
    return asker(capfd)


def numbers(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(path, leaf) of a document."""
    if isinstance(value, dict):
        for name, one in value.items():
            yield from numbers(one, f"{path}.{name}")
    elif isinstance(value, list):
        for index, one in enumerate(value):
            yield from numbers(one, f"{path}[{index}]")
    else:
        yield path, value


def golden_part(document: dict[str, Any]) -> dict[str, Any]:
    """Without what names files, words, and the series of single workers and edges, which other tests sum."""
    kept = {name: value for name, value in document.items() if name not in ("inputs", "limits")}
    return kept | {"series": {k: v for k, v in document["series"].items() if k not in ("workers", "edges")}}


@pytest.mark.parametrize("name", ["chat", "code"])
def test_a_shipped_simulation_gives_its_expected_summary(ask: Ask, name: str) -> None:
    """Bytes and counts exactly; seconds to nine digits, for another numpy may round exp in its last bit."""
    answer = ask("simulate", name, "-o", "json")
    assert answer.code == 0
    found = dict(numbers(golden_part(answer.document)))
    expected = dict(numbers(json.loads((GOLDEN / f"{name}.json").read_text())))
    assert found.keys() == expected.keys()
    for path, value in expected.items():
        wanted = pytest.approx(value, rel=1e-9) if isinstance(value, float) else value
        assert found[path] == wanted, path


def test_the_text_names_what_is_not_modelled_and_the_denominators(ask: Ask) -> None:
    answer = ask("simulate", "chat")
    assert answer.code == 0
    for words in (
        "Limits",
        "new tokens/s a decode device",
        "prompt tokens/s a prefill device",
        "goodput 1,929 of 4,000",
    ):
        assert words in answer.out


def test_lines_are_written_as_they_come_and_a_half_written_file_is_none(tmp_path: Path) -> None:
    """A million records need not be in memory together, and a failure in their midst leaves what was there."""
    out = tmp_path / "lines"
    write_lines(str(out), (f"{n}\n" for n in range(3)))
    assert out.read_text() == "0\n1\n2\n"

    def broken() -> Iterator[str]:
        yield "3\n"
        raise RuntimeError("in the midst")

    with pytest.raises(RuntimeError):
        write_lines(str(out), broken())
    assert out.read_text() == "0\n1\n2\n"
    assert [path.name for path in tmp_path.iterdir()] == ["lines"]


def test_records_tell_every_request_once(ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scenarios.simulation.records.SLICE", 300)
    out = tmp_path / "requests.jsonl"
    assert ask("simulate", "code", "--records-out", out).code == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["request"] for row in rows] == list(range(2000))
    assert {row["state"] for row in rows} == {"finished"}
    assert any(row["retries"] for row in rows)
    for row in rows:
        times = [row[k] for k in ("arrival_ps", "prefill_start_ps", "prefill_end_ps", "first_token_ps", "end_ps")]
        assert times == sorted(times)


def test_what_admission_refuses_is_code_1_and_no_performance_is_shown(ask: Ask, tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(
        "schema: kvwaybill/simulation-scenario/1\nfleet: two-gpu-tight\nprefill: {devices: gpu:0, max_seqs: 4096,"
        " max_tokens: 4096}\ndecode: {devices: gpu:1}\narrivals: {kind: poisson, rate: 4, requests: 10}\n"
        "prompts: {kind: fixed, value: 100}\nanswers: {kind: fixed, value: 10}\n"
    )
    answer = ask("simulate", path)
    assert answer.code == 1
    assert answer.out.startswith("REFUSED")
    assert "short by" in answer.out
    assert "Latency" not in answer.out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("no-such",), 2, "no shipped simulation"),
        (("chat", "--trace", "no-such.csv"), 2, "cannot be read"),
        (("chat", "--fleet", "two-gpu-nvlink"), 2, "is no device of fleet"),
        (("chat", "--seed", "-1"), 2, "seed"),
    ],
)
def test_wrong_words_are_told_with_their_code(ask: Ask, arguments: tuple[str, ...], code: int, words: str) -> None:
    answer = ask("simulate", *arguments)
    assert (answer.code, words in answer.err) == (code, True), answer.err


def test_what_nobody_knows_is_code_3(ask: Ask, tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(
        "schema: kvwaybill/simulation-scenario/1\nfleet: two-gpu-unknown\nprefill: {devices: gpu:0}\n"
        "decode: {devices: gpu:1}\narrivals: {kind: poisson, rate: 4, requests: 10}\n"
        "prompts: {kind: fixed, value: 100}\nanswers: {kind: fixed, value: 10}\n"
    )
    answer = ask("simulate", path)
    assert answer.code == 3
    assert "unknown" in answer.out + answer.err


def test_an_slo_that_nobody_meets_is_a_goodput_of_none(ask: Ask, tmp_path: Path) -> None:
    from scenarios.shipped import LIBRARY

    text = (Path(LIBRARY) / "simulations" / "chat.yaml").read_text().replace("ttft: 30 ms", "ttft: 1 ps")
    text = text.replace("model: dense-8b.json", f"model: {LIBRARY}/simulations/dense-8b.json")
    (tmp_path / "s.yaml").write_text(text)
    answer = ask("simulate", tmp_path / "s.yaml", "-o", "json")
    assert answer.code == 0
    assert answer.document["goodput"]["met"] == 0


def test_a_request_longer_than_the_model_is_refused_and_counted_and_the_others_go_on(ask: Ask, tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,100,5\n1,131072,2\n2,131072,1\n")
    answer = ask("simulate", "chat", "--trace", trace, "-o", "json")
    assert answer.code == 0
    counts = answer.document["requests"]
    assert (counts["finished"], counts["refused"], counts["unfinished"]) == (2, 1, 0)
    assert "1 requests refused" in answer.document["unfinished"][0]


def test_a_cold_run_says_that_it_compiles_and_a_warm_one_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from scenarios.simulation import engine
    from scenarios.simulation.read_spec import load_spec
    from scenarios.simulation.run import run_spec

    spec, told = load_spec("chat"), list[str]()
    run_spec(spec)  # compiled or loaded now, whatever was kept
    run_spec(spec, told.append)
    assert told == []
    monkeypatch.setattr(engine, "will_compile", lambda config: True)
    run_spec(spec, told.append)
    assert [words.split(" ")[0] for words in told] == ["compiling", "compiled"]
