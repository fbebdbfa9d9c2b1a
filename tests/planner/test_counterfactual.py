"""Counterfactuals over random fleets: each change is admitted when applied, and one step less is refused."""

from __future__ import annotations

import functools
import json
import tempfile
from dataclasses import replace
from fractions import Fraction
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fleet.checkpoints import load_model
from fleet.machine import Budget, Fleet, Host, Link
from fleet.model import DTYPE_BYTES, PRICED_DTYPES, Model
from fleet.placement import Placement
from planner.admit import Admission, Ask, admit
from planner.counterfactual import Change
from planner.counterfactual_fleet import capacities
from planner.fixes import counterfactuals, dimensions
from planner.request import Request
from planner.workers import degrees
from tests.planner.fleets import device, host_links, known, llama2c

MODEL = llama2c()
NAMES = {
    "utilization", "context", "sequences", "new tokens", "prompt", "swapped roles", "other device", "KV type",
    "weights type", "tensor-parallel degree", "pipeline stages", "in use", "pinned pool", "capacity", "other route",
    "one device for both phases",
}  # fmt: skip


@functools.cache
def dense() -> Model:
    """A Llama of a config.json, whose tensors ranks can divide."""
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 4,
        "num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 160, "vocab_size": 512,
        "max_position_embeddings": 512, "torch_dtype": "bfloat16",
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(config))
        return load_model(str(path))


def mesh(
    sizes: list[int],
    *,
    peer: str = "direct",
    pool: int | None = None,
    budget: Budget | None = None,
    granule: int = 4096,
) -> Fleet:
    """Devices of these capacities on one host, each linked with each."""
    names = [f"gpu:{index}" for index in range(len(sizes))]
    links = [link for name in names for link in host_links(name)]
    links += [Link(src=a, dst=b, kind="pcie", peer_access=peer) for a, b in permutations(names, 2)]  # type: ignore[arg-type]  # a table's word
    return Fleet(
        name="mesh",
        hosts=(Host(id="host", pinned_pool=known(pool)) if pool is not None else Host(id="host"),),
        devices=tuple(
            device(name, capacity=size, granule=granule, topology_id=500 + index)
            for index, (name, size) in enumerate(zip(names, sizes, strict=True))
        ),
        links=tuple(links),
        budget=budget or Budget(),
    )


REQUESTS = st.one_of(
    st.builds(Request, prompt_tokens=st.integers(1, 60), steps=st.integers(61, 400), batch=st.integers(1, 12)),
    st.builds(Request, prompt_tokens=st.integers(1, 200), new_tokens=st.integers(2, 200), batch=st.integers(1, 4)),
    st.builds(
        Request, prompt_tokens=st.integers(1, 60), steps=st.integers(61, 200), positions=st.integers(200, 512),
        batch=st.integers(1, 4), kv_extent=st.sampled_from(["filled", "allocated", "blocks:16"]),
    ),
)  # fmt: skip


@st.composite
def asks(draw: st.DrawFn) -> Ask:
    """A request on a fleet that is, as a rule, short of a little on one device or both."""
    count = draw(st.integers(2, 5))
    sizes = draw(st.lists(st.integers(300_000, 3_000_000), min_size=count, max_size=count))
    share = draw(st.sampled_from([None, Fraction(1), Fraction(1, 2), Fraction(9, 10)]))
    budget = Budget(utilization=Fraction(4, 5), reserve=draw(st.sampled_from([0, 50_000])))
    used = draw(st.sampled_from([0, 100_000]))
    fleet = mesh(sizes, peer=draw(st.sampled_from(["direct", "staged"])), budget=budget)
    fleet = replace(fleet, devices=tuple(replace(d, in_use=used) for d in fleet.devices))
    return Ask(
        fleet=fleet, model=MODEL, request=draw(REQUESTS), placement=Placement(prefill="gpu:0", decode="gpu:1"),
        utilization=share, share_of=draw(st.sampled_from(["total", "free"])),
    )  # fmt: skip


def found(admission: Admission) -> dict[str, tuple[Change, ...]]:
    return {dimension.name: dimension.changes for dimension in dimensions(admission)}


def refused(ask: Ask) -> bool:
    return admit(ask).verdict == "refused"


@settings(deadline=None, max_examples=60)
@given(asks())
def test_every_change_is_admitted_and_changes_what_it_says_alone(ask: Ask) -> None:
    admission = admit(ask)
    assume(admission.verdict == "refused")
    for dimension in dimensions(admission):
        if not dimension.changes:
            assert "it is admitted" not in dimension.why_none
    for name, changes in found(admission).items():
        for change in changes:
            assert admit(change.ask).verdict == "admitted", name
            same = {
                field: getattr(change.ask, field) == getattr(ask, field) for field in ("placement", "fleet", "model")
            }
            moved = {
                "swapped roles", "other device", "tensor-parallel degree", "pipeline stages",
                "one device for both phases",
            }  # fmt: skip
            assert same["placement"] == (name not in moved)
            assert same["fleet"] == (name not in {"capacity", "in use", "pinned pool", "other route"})
            assert same["model"]


@settings(deadline=None, max_examples=60)
@given(asks())
def test_a_step_less_of_a_count_or_share_is_refused(ask: Ask) -> None:
    admission = admit(ask)
    assume(admission.verdict == "refused")
    changes = found(admission)
    for change in changes["utilization"]:
        assert change.ask.utilization is not None
        assert refused(replace(ask, utilization=change.ask.utilization - Fraction(1, 10_000)))
    for name, field in (("sequences", "batch"), ("prompt", "prompt_tokens")):
        for change in changes[name]:
            more = getattr(change.ask.request, field) + 1
            assert refused(replace(ask, request=replace(ask.request, **{field: more})))
    for change in changes["new tokens"]:
        field = "steps" if ask.request.new_tokens is None else "new_tokens"
        more = getattr(change.ask.request, field) + 1
        assert refused(replace(ask, request=replace(ask.request, **{field: more})))
    for change in changes["context"]:
        positions = change.ask.request.positions
        assert positions is not None
        more_passes = {} if change.ask.request.steps == ask.request.steps else {"steps": positions + 1}
        assert refused(replace(ask, request=replace(ask.request, positions=positions + 1, **more_passes)))


@settings(deadline=None, max_examples=60)
@given(asks())
def test_no_wider_type_no_unlisted_device_and_no_smaller_capacity_would_do(ask: Ask) -> None:
    admission = admit(ask)
    assume(admission.verdict == "refused")
    changes = found(admission)
    for name, field in (("KV type", "kv_dtype"), ("weights type", "weights_dtype")):
        widest = max((DTYPE_BYTES[getattr(c.ask.request, field)] for c in changes[name]), default=0)
        for dtype in PRICED_DTYPES:
            if widest < DTYPE_BYTES[dtype] < 4:
                assert refused(replace(ask, request=replace(ask.request, **{field: dtype})))
    for change in changes["capacity"]:
        for number, grown in enumerate(change.ask.fleet.devices):
            if grown.memory.capacity != ask.fleet.devices[number].memory.capacity:
                assert refused(replace(change.ask, fleet=_one_byte_less(change.ask.fleet, number)))


def _one_byte_less(fleet: Fleet, number: int) -> Fleet:
    devices = list(fleet.devices)
    capacity = devices[number].memory.capacity.value
    assert capacity is not None
    memory = replace(devices[number].memory, capacity=known(capacity - 1))
    devices[number] = replace(devices[number], memories=(memory,))
    return replace(fleet, devices=tuple(devices), digest="")


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(120_000, 500_000), min_size=3, max_size=8), st.integers(1, 8))
def test_no_lower_degree_on_the_same_devices_would_do(sizes: list[int], batch: int) -> None:
    ask = Ask(
        fleet=mesh(sizes, granule=1), model=dense(), request=Request(prompt_tokens=14, steps=40, batch=batch),
        placement=Placement(prefill="gpu:0", decode="gpu:1"),
    )  # fmt: skip
    admission = admit(ask)
    assume(admission.verdict == "refused")
    for change in found(admission)["tensor-parallel degree"]:
        placed = change.ask.placement
        assert admit(change.ask).verdict == "admitted"
        assert placed.tp is not None
        for lower in (n for n in degrees(dense(), 8) if n < max(placed.tp)):
            cut = [",".join(placed.ranks(phase)[:lower]) for phase in ("prefill", "decode")]
            tp = (cut[0].count(",") + 1, cut[1].count(",") + 1)
            assert refused(replace(ask, placement=Placement(prefill=cut[0], decode=cut[1], tp=tp)))


def test_every_dimension_is_told_with_a_change_or_why_not() -> None:
    ask = Ask(
        fleet=mesh([2_000_000, 1_000_000]), model=MODEL, request=Request(prompt_tokens=14, steps=40),
        placement=Placement(prefill="gpu:0", decode="gpu:1"),
    )  # fmt: skip
    _, _, table = counterfactuals(admit(ask))
    assert {row["dimension"] for row in table} == NAMES
    for row in table:
        assert (row["change"] is None) == bool(row.get("why"))


def test_an_admitted_request_has_no_counterfactuals() -> None:
    ask = Ask(
        fleet=mesh([2_000_000, 2_000_000]), model=MODEL, request=Request(prompt_tokens=14, steps=40),
        placement=Placement(prefill="gpu:0", decode="gpu:1"),
    )  # fmt: skip
    assert counterfactuals(admit(ask))[1:] == ((), ())


def wanted(name: str, sizes: list[int], model: Model = MODEL, **request: Any) -> dict[str, Any]:
    """The document of the smallest change of a dimension."""
    ask = Ask(
        fleet=mesh(sizes), model=model, request=Request(**({"prompt_tokens": 14, "steps": 40} | request)),
        placement=Placement(prefill="gpu:0", decode="gpu:1"), utilization=Fraction(1),
    )  # fmt: skip
    admission = admit(ask)
    assert admission.verdict == "refused"
    return found(admission)[name][0].document


def test_more_ranks_are_offered_for_the_phase_that_is_short() -> None:
    document = wanted("tensor-parallel degree", [700_000, 400_000, 400_000], dense())
    assert document == {"flag": "--decode", "from": "gpu:1", "to": "gpu:1,gpu:2"}


def test_more_ranks_are_offered_for_both_phases() -> None:
    document = wanted("tensor-parallel degree", [400_000] * 4, dense())
    assert [document["to"], document["and"][0]["to"]] == ["gpu:1,gpu:3", "gpu:0,gpu:2"]


def test_the_context_takes_the_passes_down_with_it() -> None:
    document = wanted("context", [1_150_000, 1_150_000], positions=500, steps=500)
    assert document["flag"] == "--positions"
    assert document["and"] == [{"flag": "--steps", "from": 500, "to": document["to"]}]


def test_swapped_roles_are_offered_where_one_device_holds_the_bigger_phase() -> None:
    assert wanted("swapped roles", [1_130_000, 1_300_000], prefill_chunk=14)["flag"] == "--decode"


def test_a_direct_route_is_offered_where_the_pinned_pool_is_short() -> None:
    ask = Ask(
        fleet=mesh([2_000_000, 2_000_000], peer="staged", pool=10), model=MODEL,
        request=Request(prompt_tokens=14, steps=40), placement=Placement(prefill="gpu:0", decode="gpu:1"),
    )  # fmt: skip
    [change] = found(admit(ask))["other route"]
    assert change.document == {"field": "links[gpu:0->gpu:1].peer_access", "from": "staged", "to": "direct"}


@pytest.mark.parametrize("basis", ["total", "free"])
def test_capacity_of_all_bases_is_the_least(basis: Any) -> None:
    ask = Ask(
        fleet=mesh([500_000, 600_000], budget=Budget(reserve=1000)), model=MODEL, share_of=basis,
        request=Request(prompt_tokens=14, steps=40), placement=Placement(prefill="gpu:0", decode="gpu:1"),
    )  # fmt: skip
    [change] = capacities(admit(ask))
    assert admit(change.ask).verdict == "admitted"
    assert refused(replace(change.ask, fleet=_one_byte_less(change.ask.fleet, 0)))


def test_a_rank_that_is_short_is_moved_to_another_device() -> None:
    ask = Ask(
        fleet=mesh([700_000, 150_000, 400_000, 400_000]), model=dense(), request=Request(prompt_tokens=14, steps=40),
        placement=Placement(prefill="gpu:0", decode="gpu:1,gpu:2", tp=(1, 2)), utilization=Fraction(1),
    )  # fmt: skip
    [change] = found(admit(ask))["other device"]
    assert change.document == {"flag": "--decode", "from": "gpu:1,gpu:2", "to": "gpu:3,gpu:2"}
    assert change.ask.placement.tp == (1, 2)


def test_workers_divided_alike_can_swap_their_roles() -> None:
    ask = Ask(
        fleet=mesh([300_000, 300_000, 450_000, 450_000], granule=1), model=dense(), utilization=Fraction(1),
        request=Request(prompt_tokens=100, steps=140, prefill_chunk=100),
        placement=Placement(prefill="gpu:0,gpu:1", decode="gpu:2,gpu:3", tp=(2, 2)),
    )  # fmt: skip
    assert found(admit(ask))["swapped roles"][0].document["to"] == "gpu:0,gpu:1"
