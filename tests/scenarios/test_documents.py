"""Reading, checking and writing documents: nothing hostile gets past, nothing is half written."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleet.errors import DescriptionError
from scenarios import documents
from scenarios.documents import (
    canonical,
    check_writable,
    parse_document,
    plan_id,
    pretty,
    read_document,
    write_document,
)
from scenarios.planning import make_plan
from scenarios.wanted import Wanted, prepare
from tests.scenarios.made import plan, run_of, signed

texts = st.text(max_size=8)
plain = (
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | texts
)
values = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=12
)
objects = st.dictionaries(texts, values, max_size=4)


def written(path: Path, document: Any) -> str:
    path.write_text(json.dumps(document))
    return str(path)


def faults_of(path: str, kinds: tuple[str, ...] = ("plan", "run")) -> list[tuple[str, str]]:
    with pytest.raises(DescriptionError) as caught:
        read_document(path, kinds)
    return [(fault.field, fault.message) for fault in caught.value.faults]


@given(objects)
def test_pretty_and_canonical_round_trip(document: dict[str, Any]) -> None:
    assert json.loads(pretty(document)) == document
    assert json.loads(canonical(document)) == document
    assert parse_document(pretty(document).encode(), "here") == document


@given(objects, st.randoms())
def test_canonical_form_does_not_depend_on_the_order_of_keys(document: dict[str, Any], random: Any) -> None:
    keys = list(document)
    random.shuffle(keys)
    assert canonical({key: document[key] for key in keys}) == canonical(document)


def test_canonical_has_sorted_keys_no_blanks_and_utf8() -> None:
    assert canonical({"b": [1, 2], "a": "é"}) == '{"a":"é","b":[1,2]}'.encode()


def test_a_lone_surrogate_is_written_as_its_escape_and_read_back() -> None:
    document = {"prompt": "\udcff"}
    assert canonical(document) == b'{"prompt":"\\udcff"}'
    assert json.loads(canonical(document)) == document


def test_the_id_covers_everything_but_itself() -> None:
    document = plan()
    assert document["id"] == plan_id(document)
    assert plan_id(document | {"id": "other"}) == plan_id(document)
    assert plan_id(document | {"verdict": "refused"}) != plan_id(document)


def test_a_made_plan_has_an_id_that_fits() -> None:
    made = make_plan(prepare(Wanted(fleet="two-gpu-nvlink", prompt="a", steps=8)))
    assert made["id"] == plan_id(made)


@pytest.mark.parametrize("words", [{}, {"attention": "host"}, {"fleet": "two-gpu-staged"}, {"utilization": "0.0001"}])
def test_documents_round_trip_through_a_file(tmp_path: Path, words: dict[str, Any]) -> None:
    planned = plan(**words)
    write_document(str(tmp_path / "plan.json"), planned)
    assert read_document(str(tmp_path / "plan.json"), ("plan",)) == planned
    if planned["verdict"] == "admitted":
        run = run_of(planned)
        write_document(str(tmp_path / "run.json"), run)
        assert read_document(str(tmp_path / "run.json"), ("plan", "run")) == run


def test_unknown_keys_are_kept(tmp_path: Path) -> None:
    planned = signed(plan() | {"later": {"addition": [1]}})
    planned["waybill"][0]["note"] = "kept"
    planned = signed(planned)
    assert read_document(written(tmp_path / "p.json", planned), ("plan",)) == planned


def test_a_plan_edited_by_hand_is_refused(tmp_path: Path) -> None:
    planned = plan()
    planned["orders"]["fences"][0]["bytes"] += 1
    faults = faults_of(written(tmp_path / "p.json", planned))
    assert [field for field, _ in faults] == ["id"]
    assert "edited by hand; admit again" in faults[0][1]


def test_every_fault_of_a_document_is_told_at_once_with_its_path(tmp_path: Path) -> None:
    planned = plan()
    planned["verdict"] = "maybe"
    planned["waybill"][1]["bytes"] = "164"
    planned["waybill"][2]["copies"] = True
    planned["memory"][0]["total_bytes"] = -1
    del planned["limits"]
    planned["orders"]["devices"][0]["kind"] = "tpu"
    fields = {field for field, _ in faults_of(written(tmp_path / "p.json", planned))}
    assert fields == {
        "verdict",
        "waybill[1].bytes",
        "waybill[2].copies",
        "memory[0].total_bytes",
        "limits",
        "orders.devices[0].kind",
    }


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[]", "wanted a JSON object"),
        (b"null", "wanted a JSON object"),
        (b"\xff\xfe{", "not UTF-8"),
        (b'{"a":1,"a":2}', "stands twice"),
        (b'{"a":NaN}', "NaN is not JSON"),
        (b'{"a":-Infinity}', "is not JSON"),
        (b'{"a":1e999}', "no finite number"),
        (b'{"a":' + b"1" * 5000 + b"}", "5000 digits"),
        (b'{"a":' + b"[" * 100 + b"]" * 100 + b"}", "nested deeper"),
        (b'{"a":' + b"[" * 100_000, "nested deeper"),
        (b'{"a":[' + b"[]," * 40 + b"[]]} trailing", "not JSON"),
    ],
)
def test_hostile_json_is_one_clear_fault(text: bytes, word: str) -> None:
    with pytest.raises(DescriptionError, match=word):
        parse_document(text, "here")


def test_a_byte_order_mark_is_read_over() -> None:
    assert parse_document(b'\xef\xbb\xbf{"a":1}', "here") == {"a": 1}


def test_syntax_faults_have_line_and_column() -> None:
    with pytest.raises(DescriptionError) as caught:
        parse_document(b'{\n  "a": 1,\n  b\n}', "plan.json")
    assert str(caught.value).startswith("plan.json:3:3")


def test_too_many_values_are_refused_before_they_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MAX_VALUES", 100)
    with pytest.raises(DescriptionError, match="more than 100 values"):
        parse_document(b'{"a":[' + b"[]," * 100 + b"[]]}", "here")


def test_too_large_a_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MAX_BYTES", 100)
    assert "larger than" in faults_of(written(tmp_path / "p.json", plan()))[0][1]


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_no_bytes_raise_anything_but_a_description_error(data: bytes) -> None:
    with contextlib.suppress(DescriptionError):
        parse_document(data, "here")


@settings(max_examples=200, deadline=None)
@given(draw=st.data())
def test_no_value_in_any_place_raises_anything_but_a_description_error(draw: st.DataObject) -> None:
    kind = draw.draw(st.sampled_from(["plan", "run"]))
    document = plan() if kind == "plan" else run_of(plan())
    at: Any = document
    while True:
        key = draw.draw(st.sampled_from(sorted(at) if isinstance(at, dict) else list(range(len(at)))))
        if not isinstance(at[key], (dict, list)) or not at[key] or draw.draw(st.integers(0, 5)) == 0:
            break
        at = at[key]
    at[key] = draw.draw(values)
    if kind == "plan" and isinstance(document.get("id"), str):
        document = signed(document)
    data = json.dumps(document).encode()
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(DescriptionError):
        patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
        read_document("-", ("plan", "run"))


@pytest.mark.parametrize(
    ("schema", "word"),
    [
        (None, "missing"),
        (7, "missing"),
        ("kvwaybill/plan/2", "reads number 1"),
        ("kvwaybill/novel/1", "is not known"),
        ("other/plan/1", "is not known"),
        ("kvwaybill/run/1", "a run document stands here; wanted kvwaybill/plan/1"),
    ],
)
def test_another_schema_is_told(tmp_path: Path, schema: Any, word: str) -> None:
    document = plan() | {"schema": schema}
    if schema is None:
        del document["schema"]
    faults = faults_of(written(tmp_path / "p.json", document), ("plan",))
    assert faults[0][0] == "schema"
    assert word in faults[0][1]


@pytest.mark.parametrize("path", ["missing.json", ".", "/dev/zero", "a\0b", "x" * 300])
def test_what_cannot_be_read_is_one_clear_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(faults_of(path)) == 1


def test_a_pipe_can_be_read(tmp_path: Path) -> None:
    planned = plan()
    reader, writer = os.pipe()

    def write() -> None:
        with os.fdopen(writer, "wb") as file:
            file.write(canonical(planned))

    other = threading.Thread(target=write)
    other.start()
    try:
        assert read_document(f"/dev/fd/{reader}", ("plan",)) == planned
    finally:
        os.close(reader)
        other.join()


class TestWriting:
    def test_nothing_is_left_behind_when_the_rename_fails(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        target = tmp_path / "plan.json"
        target.write_text("before")

        def broken(src: str, dst: str) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "replace", broken)
        with pytest.raises(DescriptionError, match="No space left"):
            write_document(str(target), {"a": 1})
        assert target.read_text() == "before"
        assert os.listdir(tmp_path) == ["plan.json"]

    def test_nothing_is_left_behind_when_writing_is_interrupted(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupted(src: str, dst: str) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(os, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            write_document(str(tmp_path / "plan.json"), {"a": 1})
        assert os.listdir(tmp_path) == []

    @pytest.mark.parametrize("path", ["no/such/folder/p.json", ".", "a\0b", "x" * 300])
    def test_an_unwritable_path_is_told_before_and_when_writing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
    ) -> None:
        monkeypatch.chdir(tmp_path)
        with pytest.raises(DescriptionError, match="cannot be written"):
            write_document(path, {"a": 1})
        if path != "x" * 300:
            with pytest.raises(DescriptionError, match="cannot be written"):
                check_writable(path)
        assert os.listdir(tmp_path) == []

    def test_a_link_stays_a_link(self, tmp_path: Path) -> None:
        (tmp_path / "real.json").write_text("before")
        (tmp_path / "link.json").symlink_to("real.json")
        write_document(str(tmp_path / "link.json"), {"a": 1})
        assert (tmp_path / "link.json").is_symlink()
        assert json.loads((tmp_path / "real.json").read_text()) == {"a": 1}

    def test_a_device_is_written_to_and_never_replaced(self) -> None:
        before = os.stat("/dev/null")
        check_writable("/dev/null")
        write_document("/dev/null", {"a": 1})
        after = os.stat("/dev/null")
        assert stat.S_ISCHR(after.st_mode)
        assert after.st_ino == before.st_ino

    def test_dash_is_stdout(self, capsys: pytest.CaptureFixture[str]) -> None:
        write_document("-", {"a": 1})
        assert json.loads(capsys.readouterr().out) == {"a": 1}

    def test_a_new_file_has_the_permissions_that_any_file_gets(self, tmp_path: Path) -> None:
        write_document(str(tmp_path / "p.json"), {"a": 1})
        (tmp_path / "other").write_text("")
        assert stat.S_IMODE(os.stat(tmp_path / "p.json").st_mode) == stat.S_IMODE(os.stat(tmp_path / "other").st_mode)


def test_reading_does_not_change_a_document(tmp_path: Path) -> None:
    planned = plan()
    before = copy.deepcopy(planned)
    assert read_document(written(tmp_path / "p.json", planned), ("plan",)) == before
