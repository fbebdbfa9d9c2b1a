"""Scenario files: what is read, and that each fault is told at its line and column, all at once."""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import DescriptionError
from scenarios.planning import make_plan
from scenarios.scenario import load_scenario, scenario_names, scenario_rows, scenario_schema, scenario_text
from scenarios.wanted import prepare

HEAD = "schema: kvwaybill/scenario/1\nfleet: two-gpu-nvlink\n"


def file(folder: Path, text: str) -> str:
    path = folder / "s.yaml"
    path.write_text(text)
    return str(path)


def faults(folder: Path, text: str) -> list[str]:
    """Each fault as `line:column field message`."""
    with pytest.raises(DescriptionError) as caught:
        load_scenario(file(folder, text))
    return [f"{fault.line}:{fault.column} {fault.field} {fault.message}" for fault in caught.value.faults]


SHIPPED = {
    "two-gpu": "admitted",
    "two-gpu-host": "admitted",
    "two-gpu-staged": "admitted",
    "two-gpu-words": "admitted",
    "one-gpu": "admitted",
    "gpu-and-cpu": "admitted",
    "two-gpu-tight": "refused",
    "two-gpu-unknown": "unverified",
    "same-node-locality": "admitted",
}


def test_the_library_is_what_it_says() -> None:
    assert set(scenario_names()) == set(SHIPPED)
    assert [row["name"] for row in scenario_rows()] == scenario_names()
    assert all(row["about"] for row in scenario_rows())


@pytest.mark.parametrize(("name", "verdict"), SHIPPED.items())
def test_each_shipped_scenario_has_its_verdict(name: str, verdict: str) -> None:
    wanted = load_scenario(name)
    assert wanted.name == name
    plan = make_plan(prepare(wanted))
    assert plan["verdict"] == verdict
    passes = plan["passes"]
    assert passes["prefill"] >= 8
    assert passes["decode"] >= 24


def test_a_file_beside_stands_before_the_shipped_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two-gpu").write_text(HEAD + "name: mine\n")
    assert load_scenario("two-gpu").name == "mine"


def test_every_field_is_read(tmp_path: Path) -> None:
    (tmp_path / "m.bin").write_bytes(b"m")
    (tmp_path / "t.bin").write_bytes(b"t")
    wanted = load_scenario(
        file(
            tmp_path,
            HEAD
            + "name: all\nmodel: m.bin\ntokenizer: ./t.bin\nx-note: {anything: [goes]}\n"
            + "workload: {prompt: 'Once, upon', steps: 256, positions: 300, batch: 1}\n"
            + "placement: {prefill: 'gpu:0', decode: node3/gpu:1}\nattention: host\nkv_extent: blocks:16\n"
            + "kv_dtype: fp32\nweights_dtype: fp32\nlayout: plain\nprefill_chunk: 4\nutilization: 90 %\n"
            + "expect: [1, 403, 407]\n",
        )
    )
    assert wanted.model == str(tmp_path / "m.bin")
    assert wanted.tokenizer == f"{tmp_path}/./t.bin"
    assert (wanted.prompt, wanted.steps, wanted.positions, wanted.batch) == ("Once, upon", 256, 300, 1)
    assert (wanted.prefill, wanted.decode) == ("gpu:0", "node3/gpu:1")
    assert (wanted.attention, wanted.kv_extent, wanted.prefill_chunk) == ("host", "blocks:16", 4)
    assert (wanted.utilization, wanted.expect) == ("90 %", (1, 403, 407))


def test_nothing_behind_prompt_is_the_empty_prompt(tmp_path: Path) -> None:
    assert load_scenario(file(tmp_path, HEAD + "workload: {prompt: , steps: 4}\n")).prompt == ""


def test_paths_may_lead_to_files_beside_and_be_absolute(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    (tmp_path / "m.bin").write_bytes(b"m")
    assert load_scenario(file(inner, HEAD + "model: ../m.bin\n")).model == str(inner / "../m.bin")
    assert load_scenario(file(inner, HEAD + f"model: {tmp_path}/m.bin\n")).model == str(tmp_path / "m.bin")


FAULTS = [
    ("schema: kvwaybill/scenario/2\nfleet: two-gpu-nvlink\n", "1:9 schema", "kvwaybill/scenario/1"),
    ("fleet: two-gpu-nvlink\n", "1:1 ", "schema is missing"),
    ("schema: kvwaybill/scenario/1\n", "1:1 ", "fleet is missing"),
    (HEAD + "flet: x\n", "3:1 flet", "did you mean fleet?"),
    (HEAD + "workload:\n  promt: hello\n", "4:3 workload.promt", "did you mean prompt?"),
    (HEAD + "workload: 5\n", "3:11 workload", "wanted a mapping"),
    (HEAD + "workload: {steps: -1}\n", "3:19 workload.steps", "no whole number"),
    (HEAD + "workload: {steps: 1e3}\n", "3:19 workload.steps", "no whole number"),
    (HEAD + "workload: {steps: yes}\n", "3:19 workload.steps", "no whole number"),
    (HEAD + "workload: {new_tokens: 0}\n", "3:24 workload.new_tokens", "from 1 to"),
    (HEAD + "workload: {steps: 4, new_tokens: 4}\n", "3:22 workload.new_tokens", "one of the two"),
    (HEAD + "workload: {prompt: a, prompt_tokens: 4}\n", "3:23 workload.prompt_tokens", "one of the two"),
    (HEAD + "placement: {prefil: gpu:0}\n", "3:13 placement.prefil", "did you mean prefill?"),
    (HEAD + "placement: {prefill: gpu 0}\n", "3:22 placement.prefill", "no device id"),
    (HEAD + "attention: hots\n", "3:12 attention", "did you mean host?"),
    (HEAD + "kv_extent: blocks:0\n", "3:12 kv_extent", "none of"),
    (HEAD + "kv_dtype: int8\n", "3:11 kv_dtype", "none of"),
    (HEAD + "expect: [1, x]\n", "3:13 expect[1]", "no whole number"),
    (HEAD + "expect: 1\n", "3:9 expect", "a list of token ids"),
    (HEAD + "model: nowhere.bin\n", "3:8 model", "relative to the scenario's folder"),
    (HEAD + "model: /dev/zero\n", "3:8 model", "is a device"),
    (HEAD + "tokenizer: [a]\n", "3:12 tokenizer", "wanted text"),
    ("schema: kvwaybill/scenario/1\nfleet: two-gpu-nvlnk\n", "2:8 fleet", "did you mean two-gpu-nvlink?"),
    (HEAD + "fleet: one-gpu\n", "3:1 fleet", "given twice, first at line 2"),
    (HEAD + "name: &a x\n", "3:", "anchor"),
]


@pytest.mark.parametrize(("text", "where", "words"), FAULTS, ids=[where for _, where, _ in FAULTS])
def test_a_fault_has_line_column_field_and_hint(tmp_path: Path, text: str, where: str, words: str) -> None:
    found = faults(tmp_path, text)
    assert len(found) == 1, found
    assert found[0].startswith(where)
    assert words in found[0]


def test_all_faults_are_told_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    found = faults(
        tmp_path,
        "fleet: nowhere\nschema: kvwaybill/scenario/1\nattention: both\nworkload: {steps: no}\nzzz: 1\nexpect: [-1]\n",
    )
    assert [fault.split(":")[0] for fault in found] == ["1", "3", "4", "5", "6"]


@pytest.mark.parametrize("path", ["nope", "/dev/zero", ".", "a\0b", "two-gpus"])
def test_what_is_no_scenario_is_one_clear_fault(path: str) -> None:
    with pytest.raises(DescriptionError) as caught:
        load_scenario(path)
    assert len(caught.value.faults) == 1


def test_a_near_name_is_offered() -> None:
    with pytest.raises(DescriptionError, match="did you mean two-gpu"):
        load_scenario("two-gpus")


def test_a_shipped_scenario_reads_no_file_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkdir("two-gpu-nvlink")
    assert load_scenario("two-gpu").fleet == "two-gpu-nvlink"


def test_the_schema_names_every_field_that_the_reader_knows(tmp_path: Path) -> None:
    schema = scenario_schema()
    for name in schema["properties"]:
        with contextlib.suppress(DescriptionError):
            load_scenario(file(tmp_path, f"{name}: x\n"))
        assert not any("no such field" in fault for fault in faults(tmp_path, f"{name}: [[]]\n"))
    for part in ("workload", "placement"):
        for name in schema["properties"][part]["properties"]:
            assert not any("no such field" in fault for fault in faults(tmp_path, f"{part}: {{{name}: [[]]}}\n"))


def shipped_but_spoilt() -> st.SearchStrategy[str]:
    """A shipped scenario with a few characters put in somewhere."""

    def spoilt(text: str) -> st.SearchStrategy[str]:
        places = st.tuples(st.integers(0, len(text)), st.text(max_size=4))
        return places.map(lambda drawn: text[: drawn[0]] + drawn[1] + text[drawn[0] :])

    return st.sampled_from(scenario_names()).map(scenario_text).flatmap(spoilt)


@given(st.text(max_size=80) | shipped_but_spoilt())
def test_no_text_raises_anything_but_a_description_error(text: str) -> None:
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(DescriptionError):
        patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode("utf-8", "surrogatepass"))))
        load_scenario("-")
