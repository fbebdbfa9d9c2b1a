"""Hostile fleet files: one clear fault, never a traceback, nothing executed, nothing expanded."""

from __future__ import annotations

import contextlib
import copy
import errno
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.errors import DescriptionError
from fleet.load import load_fleet
from fleet.machine import Fleet
from fleet.yaml_source import MAX_BYTES, MAX_DEPTH, parse_text
from tests.strategies import fleet_files, written


def refusal(name: str, text: str | None = None) -> str:
    with pytest.raises(DescriptionError) as caught:
        load_fleet(name, text=text)
    (fault,) = caught.value.faults
    return str(fault)


def loads_or_tells(text: str) -> None:
    try:
        fleet, faults = load_fleet("fuzz.yaml", text=text), None
    except DescriptionError as error:
        fleet, faults = None, error.faults
    assert isinstance(fleet, Fleet) or faults
    for fault in faults or ():
        assert fault.message
        assert str(fault).isprintable()


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "is empty"),
        (b"\n  \n", "is empty"),
        (b"# only words\n", "only comments"),
        ("schema: x\n".encode("utf-16"), "UTF-16"),
        (b"s\0c\0h\0", "UTF-16"),
        (b"name: a\nlabel: caf\xe9\n", ":2:11: byte 0xe9 is not UTF-8"),
        (b"name: a\x07b\n", "a character that YAML does not allow"),
        (b"a: " + b"x" * MAX_BYTES, "larger than 16 MiB"),
        (b"[" * 200, f"deeper than {MAX_DEPTH} levels"),
        (b"{a: " * 200, f"deeper than {MAX_DEPTH} levels"),
        (b"- " * 200, f"deeper than {MAX_DEPTH} levels"),
        (b"%YAML 3.0\n---\na: b\n", "not YAML"),
        (b'a: "\\U00110000"\n', "malformed escape"),
    ],
)
def test_a_file_that_is_no_readable_yaml_is_one_clear_fault(tmp_path, raw, said):
    path = tmp_path / "f.yaml"
    path.write_bytes(raw)
    told = refusal(str(path))
    assert said.removeprefix(":2:11: ") in told
    assert not said.startswith(":2") or ":2:11 " in told


def test_paths_that_cannot_be_read_are_one_clear_fault_each(tmp_path):
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert "is a folder" in refusal(str(tmp_path))
    assert "no such file" in refusal(str(tmp_path / "missing.yaml"))
    assert "loop of symbolic links" in refusal(str(loop))
    assert "no file name" in refusal("a\0b")
    assert "too long" in refusal("x" * 5000)
    assert "larger than" in refusal("/dev/zero")
    assert "is empty" in refusal(os.devnull)


def test_a_file_without_permission_is_one_clear_fault(tmp_path, monkeypatch):
    def refuse(*_args, **_kwargs):
        raise PermissionError(errno.EACCES, "Permission denied")

    path = tmp_path / "f.yaml"
    path.write_text("a: b")
    monkeypatch.setattr("builtins.open", refuse)  # a mode would not hold root back
    assert "permission denied" in refusal(str(path))


def test_a_billion_laughs_are_refused_at_the_first_alias_and_not_expanded():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)]
    with pytest.raises(DescriptionError) as caught:
        load_fleet("laughs.yaml", text="\n".join(lines))
    messages = [fault.message for fault in caught.value.faults]
    assert any("anchor &a0" in message for message in messages)
    assert any("alias *a0" in message for message in messages)
    assert len(caught.value.faults) <= 120


def test_a_tag_runs_nothing(tmp_path):
    target = tmp_path / "made"
    text = f"label: !!python/object/apply:os.mkdir ['{target}']\n"
    with pytest.raises(DescriptionError, match="tags are not allowed"):
        load_fleet("f.yaml", text=text)
    assert not target.exists()


def test_too_many_values_are_refused(monkeypatch):
    monkeypatch.setattr("fleet.yaml_source.MAX_NODES", 1000)
    assert "more than 1,000 values" in refusal("f.yaml", "a: [" + "x, " * 1000 + "]")


def test_many_broken_links_are_told_without_searching_for_each(monkeypatch):
    searched = []
    monkeypatch.setattr("fleet.references.nearest", lambda word, known: searched.append(word) or "")
    links = "".join(f"  - {{from: gpu:0, to: n{i}, kind: net}}\n" for i in range(300))
    text = f"schema: kvwaybill/fleet/1\nname: n\ndevices: [{{id: gpu:0, memories: [{{name: m}}]}}]\nlinks:\n{links}"
    with pytest.raises(DescriptionError) as caught:
        load_fleet("f.yaml", text=text)
    assert len(caught.value.faults) == 300
    assert len(searched) <= 20


def test_surrogate_halves_are_told_and_pairs_are_one_character():
    assert parse_text('{"a": "\\ud83d\\ude80"}', "f").data == {"a": "\U0001f680"}
    assert "surrogate" in parse_text('a: "\\ud800"', "f").faults[0].message


def test_positions_count_lines_as_editors_do():
    document = parse_text("a: x\u2028y\r\nb: z\n", "f")
    assert document.at(("b",)) == (2, 4)
    assert document.at(("b",), key=True) == (2, 1)
    assert document.at(("missing", 3)) == (1, 1)


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=200))
def test_any_text_loads_or_is_told(text):
    loads_or_tells(text)


WORDS = st.sampled_from(
    [
        "schema",
        "kvwaybill/fleet/1",
        "warnings",
        "name",
        "devices",
        "links",
        "skus",
        "hosts",
        "nodes",
        "budget",
        "id",
        "kind",
        "gpu",
        "nvlink",
        "from",
        "to",
        "src",
        "memories",
        "capacity",
        "capacity_bytes",
        "value",
        "declared",
        "observed",
        "provenance",
        "unknown",
        "null",
        "true",
        "0",
        "-1",
        "1e999",
        "80",
        "GiB",
        "GB/s",
        "gpu:0",
        "gpu:1",
        "host",
        "index",
        "sku",
        "default_memory",
        "utilization",
        "reserve",
        "~",
        "x-",
        ".",
        "\u00e9",
    ]
)
TOKENS = st.one_of(
    WORDS, st.sampled_from([": ", "- ", ", ", "\n", "\n  ", "{", "}", "[", "]", "&a ", "*a ", "!t ", '"', "'"])
)


@settings(max_examples=400, deadline=None)
@given(st.lists(TOKENS, max_size=60).map("".join))
def test_any_soup_of_words_and_marks_loads_or_is_told(text):
    loads_or_tells(text)


PLAIN = st.one_of(st.none(), WORDS, st.text(st.characters(blacklist_categories=["Cs", "Cc", "Cn"]), max_size=6))
DATA = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=5))


@settings(max_examples=300, deadline=None)
@given(fleet_files(), DATA, st.sampled_from(["kvwaybill/fleet/1", "kvwaybill/scenario/1"]), st.data())
def test_a_good_file_with_anything_in_place_of_one_part_loads_or_is_told(data, other, schema, draw):
    data["schema"] = schema
    part = data
    while isinstance(part, (dict, list)) and part:
        key = draw.draw(st.sampled_from(sorted(part) if isinstance(part, dict) else range(len(part))))
        if not isinstance(part[key], (dict, list)) or not part[key] or draw.draw(st.booleans()):
            part[key] = other
            break
        part = part[key]
    loads_or_tells(written(data))


COMPOSED = """schema: kvwaybill/fleet/1
name: t
extends: two-gpu-nvlink
include: []
skus:
  card:
    extends: l40s
    kind: gpu
    memories:
      - {name: hbm, capacity: 80 GiB, scope: device, shared: true, physical: p}
      - {name: l2, within: hbm, scope: sm, capacity: 1 MiB, managed: cached}
    default_memory: hbm
    ports: {nvlink: {count: 2, bandwidth: 25 GB/s}}
templates:
  box:
    hosts: [{id: host}]
    devices:
      - {id: gpu, count: 2, sku: card}
      - {id: m, parent: "gpu:0", profile: x, kind: gpu, memories: [{name: a, capacity: 1 GiB}]}
    switches: [{id: sw, kind: nvlink, tier: 1, host: host}]
    nics: [{id: nic, count: 2, host: host}]
    links: [{from: "gpu:*", to: "nic:*", each: pair, kind: pcie, duplex: shared, copy_engines: 2}]
  rack:
    nodes: [{id: n, template: box, count: 2}, {id: o, template: hgx-h100}]
nodes: [{id: r, template: rack, count: 2}]
nics: [{id: mynic, host: host}]
links: [{from: "r*/n*/nic:*", to: mynic, kind: net, bidirectional: true}]
fabric: {domains: {d: {kind: nvlink, members: ["r*/n*/gpu:*"]}}, tiers: [leaf]}
"""
OTHERS = [
    None, "", "x", [], {}, [None], {"a": None}, ["gpu:0"], "true", "-1", "99", "*", "gpu:*", "host", "box", "rack", "0",
    {"id": "x"}, [{"id": "x"}], [[]], "1000", "two-gpu-nvlink", "hgx-h100", "card", "n", "r", "/", "a" * 64, "nvlink",
]  # fmt: skip


def places(data, before=()):
    """The path of every value."""
    rows = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in rows:
        yield (*before, key)
        yield from places(value, (*before, key))


WHOLE = parse_text(COMPOSED, "t").data
PLACES = sorted(places(WHOLE), key=str)


def test_the_file_of_many_machines_under_the_next_law_is_good():
    assert len(load_fleet("t", text=COMPOSED).devices) == 2 + 2 * (2 * 3 + 8)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(PLACES), st.sampled_from(OTHERS)), min_size=1, max_size=3))
def test_a_file_of_many_machines_with_anything_in_place_of_some_parts_loads_or_is_told(changes):
    data = copy.deepcopy(WHOLE)
    for path, other in changes:
        part = data
        for step in path[:-1]:
            inside = isinstance(part, dict) if isinstance(step, str) else isinstance(part, list) and step < len(part)
            part = part[step] if inside and (isinstance(part, list) or step in part) else None
        if isinstance(part, dict if isinstance(path[-1], str) else list):
            with contextlib.suppress(IndexError):
                part[path[-1]] = copy.deepcopy(other)
    loads_or_tells(written(data))
