"""Orders from JSON: the inverse of `orders_to_document`, and strict, because a plan file may come from anybody."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.errors import DescriptionError
from planner.orders import orders_to_document
from scenarios.documents import orders_from_document
from tests.scenarios.made import plan

Document = dict[str, Any]
WORDS: list[Document] = [
    {},
    {"attention": "host"},
    {"fleet": "two-gpu-staged"},
    {"fleet": "one-gpu", "decode": "gpu:0"},
    {"kv_extent": "blocks:4"},
    {"kv_extent": "allocated"},
    {"steps": 3},
    {"expect": (1, 5, 7)},
    {"prompt": None, "prompt_tokens": 12},
    {"batch": 3},
]


def orders() -> Document:
    document: Document = plan()["orders"]
    return document


@pytest.mark.parametrize("words", WORDS)
def test_orders_round_trip(words: Document) -> None:
    document = plan(**words)["orders"]
    read = orders_from_document(document)
    assert orders_to_document(read) == document
    assert orders_from_document(orders_to_document(read)) == read


def set_at(*path: Any, to: Any) -> Callable[[Document], None]:
    def edit(document: Document) -> None:
        at: Any = document
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = to

    return edit


def drop(*path: Any) -> Callable[[Document], None]:
    def edit(document: Document) -> None:
        at: Any = document
        for key in path[:-1]:
            at = at[key]
        del at[path[-1]]

    return edit


def handoff(document: Document) -> Document:
    step: Document = next(step for step in document["steps"] if step["op"] == "handoff")
    return step


def on_handoff(**fields: Any) -> Callable[[Document], None]:
    return lambda document: handoff(document).update(fields)


FAULTS: list[tuple[str, Callable[[Document], None], str]] = [
    ("a boolean index", set_at("devices", 0, "index", to=True), "orders.devices[0].index"),
    ("a float", set_at("workload", "passes", to=24.0), "orders.workload.passes"),
    ("a number as text", set_at("fences", 0, "bytes", to="64"), "orders.fences[0].bytes"),
    ("a negative fence", set_at("fences", 0, "bytes", to=-1), "orders.fences[0].bytes"),
    ("a fence beyond int64", set_at("fences", 0, "bytes", to=2**63), "orders.fences[0].bytes"),
    ("a missing fence", lambda d: d["fences"].pop(), "orders.fences"),
    ("two fences", lambda d: d["fences"].append(dict(d["fences"][0])), "orders.fences"),
    ("a fence of nothing", lambda d: d["fences"].append({"arena": "gpu:9", "bytes": 1}), "orders.fences[2].arena"),
    ("an unknown kind", set_at("devices", 0, "kind", to="tpu"), "orders.devices[0].kind"),
    ("an id with a blank", set_at("devices", 0, "id", to="gpu 0"), "orders.devices[0].id"),
    ("an id of 65 characters", set_at("devices", 0, "id", to="g" * 65), "orders.devices[0].id"),
    ("one id twice", set_at("devices", 1, "id", to="gpu:0"), "orders.devices[1].id"),
    ("one topology id twice", set_at("devices", 1, "topology_id", to=500), "orders.devices[1].topology_id"),
    ("an unknown prefill device", set_at("prefill", to="gpu:7"), "orders.prefill"),
    ("no device", set_at("devices", to=[]), "orders.devices"),
    ("one arena twice", lambda d: d["arenas"].append(dict(d["arenas"][0])), "orders.arenas[2].arena"),
    ("an arena of no device", set_at("arenas", 0, "device", to="gpu:5"), "orders.arenas[0].device"),
    ("an empty shape", set_at("arenas", 0, "buffers", 0, "shape", to=[]), "orders.arenas[0].buffers[0].shape"),
    ("a zero in a shape", set_at("arenas", 0, "buffers", 0, "shape", to=[0]), "orders.arenas[0].buffers[0].shape[0]"),
    ("a huge buffer", set_at("arenas", 0, "buffers", 0, "shape", to=[2**62, 2]), "orders.arenas[0].buffers[0].shape"),
    ("an unknown dtype", set_at("arenas", 0, "buffers", 0, "dtype", to="fp64"), "orders.arenas[0].buffers[0].dtype"),
    ("a path as name", set_at("arenas", 0, "buffers", 0, "name", to="a b"), "orders.arenas[0].buffers[0].name"),
    ("one buffer twice", lambda d: d["arenas"][0]["buffers"].append(dict(d["arenas"][0]["buffers"][0])), "buffers["),
    ("no steps", set_at("steps", to=[]), "orders.steps"),
    ("an unknown op", set_at("steps", 0, "op", to="exec"), "orders.steps[0].op"),
    ("an unknown destination", set_at("steps", 0, "dst", to="gpu:8"), "orders.steps[0].dst"),
    ("a stage without tensor", drop("steps", 0, "tensor"), "orders.steps[0].tensor"),
    ("decode on prefill's device", lambda d: d["steps"][-1].update(dst="gpu:0"), ".dst"),
    ("a handoff of weights", on_handoff(tensor="weights"), ".tensor"),
    ("a handoff without mode", lambda d: handoff(d).pop("mode"), ".mode"),
    ("a handoff from nowhere", on_handoff(src="gpu:8"), ".src"),
    ("a backward range", on_handoff(layers=[3, 1]), ".layers"),
    ("a range of three", on_handoff(layers=[0, 1, 2]), ".layers"),
    ("positions beyond the cache", on_handoff(positions=[0, 10**6]), ".positions"),
    ("blocks of no size", on_handoff(unit="block"), ".block"),
    ("a chunk of nothing", on_handoff(chunk=0), ".chunk"),
    ("ids that are not P", lambda d: d["workload"]["prompt_ids"].append(4), "orders.workload.prompt_ids"),
    ("a negative id", set_at("workload", "prompt_ids", 0, to=-1), "orders.workload.prompt_ids[0]"),
    ("a boolean id", set_at("workload", "prompt_ids", 0, to=True), "orders.workload.prompt_ids[0]"),
    ("fewer positions than passes", set_at("workload", "positions", to=3), "orders.workload.positions"),
    ("an unknown extent", set_at("workload", "kv_extent", to="blocks:0"), "orders.workload.kv_extent"),
    ("no workload", drop("workload"), "orders.workload"),
    ("an expectation in words", set_at("expect", to=["1"]), "orders.expect[0]"),
]


@pytest.mark.parametrize(("edit", "field"), [fault[1:] for fault in FAULTS], ids=[fault[0] for fault in FAULTS])
def test_what_is_wrong_is_told_with_its_path(edit: Callable[[Document], None], field: str) -> None:
    document = orders()
    edit(document)
    with pytest.raises(DescriptionError) as caught:
        orders_from_document(document)
    assert any(field in fault.field for fault in caught.value.faults), caught.value


@pytest.mark.parametrize("value", [None, [], "orders", 3, {}])
def test_no_orders_at_all_are_refused(value: Any) -> None:
    with pytest.raises(DescriptionError):
        orders_from_document(value)


def test_all_faults_are_told_at_once() -> None:
    document = orders()
    document["workload"]["passes"] = 0
    document["devices"][0]["host"] = ""
    document["steps"][0]["dst"] = None
    with pytest.raises(DescriptionError) as caught:
        orders_from_document(document)
    fields = {fault.field for fault in caught.value.faults}
    assert fields == {"orders.workload.passes", "orders.devices[0].host", "orders.steps[0].dst"}


junk = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers(), max_size=3)
)


@settings(max_examples=300, deadline=None)
@given(draw=st.data())
def test_no_junk_in_any_place_raises_anything_but_a_description_error(draw: st.DataObject) -> None:
    document = copy.deepcopy(orders())
    at: Any = document
    while True:
        key = draw.draw(st.sampled_from(sorted(at) if isinstance(at, dict) else list(range(len(at)))))
        if not isinstance(at[key], (dict, list)) or not at[key] or draw.draw(st.integers(0, 4)) == 0:
            break
        at = at[key]
    if draw.draw(st.booleans()):
        del at[key]
    else:
        at[key] = draw.draw(junk)
    with contextlib.suppress(DescriptionError):
        orders_from_document(document)
