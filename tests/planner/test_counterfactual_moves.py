"""Other devices, degrees and stages against a slow oracle: every device, group in order and shape is admitted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations, product
from typing import Literal

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fleet.machine import Domain, Fleet, Link
from fleet.placement import PHASES, Placement
from planner.admit import Admission, Ask, admit
from planner.counterfactual_degree import degree, stages
from planner.counterfactual_devices import other_devices
from planner.counterfactual_screen import Shape
from planner.fixes import Dimension, counterfactuals, dimensions
from planner.place.classes import classes_of
from planner.request import Request
from planner.workers import degrees
from tests.planner.fleets import GB, known
from tests.planner.test_counterfactual import dense, mesh

LARGE, MIDDLE, SMALL = 900_000, 420_000, 150_000
REQUEST = Request(prompt_tokens=14, steps=40)


@st.composite
def fleets(draw: st.DrawFn, most: int) -> Fleet:
    """Few sizes and few rates, so that some devices are alike and some are not; a few links are missing."""
    sizes = draw(st.lists(st.sampled_from([LARGE, MIDDLE, SMALL]), min_size=3, max_size=most))
    fleet = mesh(sizes, granule=1)
    rates = draw(st.lists(st.sampled_from([None, 20, 50]), min_size=2, max_size=2))
    links = []
    for link in fleet.links:
        if link.peer_access is not None and draw(st.integers(0, 5)) == 0:
            peer: Literal["staged", "unknown"] | None = draw(st.sampled_from(["staged", "unknown", None]))
            links += [] if peer is None else [replace(link, peer_access=peer)]
            continue
        links.append(_rated(link, rates))
    return replace(fleet, links=tuple(links))


def _rated(link: Link, rates: list[int | None]) -> Link:
    rate = rates[(int(link.src[-1]) + int(link.dst[-1])) % 2] if link.peer_access is not None else 10
    return link if rate is None else replace(link, bandwidth=known(rate * GB), latency=known(10**6))


def answered(fleet: Fleet, placed: Placement | None = None) -> Admission:
    placement = placed or Placement(prefill="gpu:0", decode="gpu:1")
    return admit(Ask(fleet=fleet, model=dense(), request=REQUEST, placement=placement))


def refusal(fleet: Fleet) -> Admission:
    admission = answered(fleet)
    assume(admission.verdict == "refused")
    assume(not any(reason.severity == "unknown" for reason in admission.reasons))
    return admission


def time_key(admission: Admission) -> tuple[bool, object]:
    assert admission.prediction is not None
    seconds = admission.prediction.handoff_seconds
    return seconds is None, seconds or 0


@settings(deadline=None, max_examples=60)
@given(fleets(6))
def test_all_admitted_moves_of_one_phase_are_told_once_a_class_and_the_quickest_first(fleet: Fleet) -> None:
    admission = refusal(fleet)
    names = [device.id for device in fleet.devices]
    moved = [Placement(prefill=name, decode="gpu:1") for name in names]
    moved += [Placement(prefill="gpu:0", decode=name) for name in names]
    free = [each for each in moved if len({*each.devices, "gpu:0", "gpu:1"}) == 3]
    able = [a for each in free if (a := admit(replace(admission.ask, placement=each))).verdict == "admitted"]
    told = other_devices(admission)
    assert sum(change.document.get("alike", 1) for change in told) == len(able)
    assert not told.searched
    if able:
        first = admit(told.changes[0].ask)
        assert time_key(first) == min(map(time_key, able))
    assert [time_key(admit(c.ask)) for c in told] == sorted(time_key(admit(c.ask)) for c in told)


def areas_of(fleet: Fleet, area: str) -> list[set[str]]:
    if area == "host":
        return [{device.id for device in fleet.devices}]
    held: dict[str, set[str]] = {}
    for name, domains in classes_of(fleet).near.domains.items():
        for domain in domains:
            held.setdefault(domain, set()).add(name)
    return list(held.values())


def placements(fleet: Fleet, placed: Placement, shapes: tuple[Shape, Shape], area: str) -> Iterator[Placement]:
    """All placements of these shapes; a phase of one rank stays where it is."""
    counts = [tp * pp for tp, pp in shapes]
    groups = [
        [placed.ranks(phase)] if shape == (1, 1)
        else list(dict.fromkeys(g for held in areas_of(fleet, area) for g in permutations(sorted(held), count)))
        for phase, shape, count in zip(PHASES, shapes, counts, strict=True)
    ]  # fmt: skip
    for prefill, decode in product(*groups):
        if not set(prefill) & set(decode):
            tp, pp = zip(*shapes, strict=True)
            yield Placement(prefill=",".join(prefill), decode=",".join(decode), tp=tp, pp=pp)


def least_shape(admission: Admission, options: list[Shape]) -> tuple[Shape, Shape] | None:
    """By force: the first shapes of which any placement is admitted, in the order that is promised."""
    ask = admission.ask
    short = {reason.device for reason in admission.reasons}
    only = tuple(phase for phase in PHASES if short & set(ask.placement.ranks(phase)))
    for area, phases in product(("domain", "host"), dict.fromkeys((only, PHASES))):
        ones, others = ([s for s in options if s != (1, 1)] if p in phases else [(1, 1)] for p in PHASES)
        counted = sorted(
            ((one, other) for one in ones for other in others),
            key=lambda pair: (n := [a * b for a, b in pair]) and (sum(n), max(n), n[0]),
        )
        for each in counted:
            if any(
                admit(replace(ask, placement=placement)).verdict == "admitted"
                for placement in placements(ask.fleet, ask.placement, each, area)
            ):
                return each
    return None


def shapes_told(found: Dimension | object) -> tuple[Shape, Shape] | None:
    changes = list(found)  # type: ignore[call-overload]  # a Found
    if not changes:
        return None
    placed = changes[0].ask.placement
    assert admit(changes[0].ask).verdict == "admitted"
    one, other = ((placed.tensor_parallel(phase), placed.pipeline(phase)) for phase in PHASES)
    return one, other


@settings(deadline=None, max_examples=25)
@given(fleets(4))
def test_the_degree_and_the_stages_told_are_the_least_that_any_group_of_devices_admits(fleet: Fleet) -> None:
    admission = refusal(fleet)
    short = {reason.code for reason in admission.reasons}
    assume(short & {"EXCEEDS_BUDGET", "EXCEEDS_CAPACITY"})
    count = len(fleet.devices)
    for found, options in (
        (degree(admission), [(tp, 1) for tp in degrees(dense(), count)]),
        (stages(admission), [(1, pp) for pp in range(1, min(count, dense().n_layers) + 1)]),
    ):
        assert not found.searched
        assert shapes_told(found) == least_shape(admission, options)


def test_unlike_degrees_are_told_where_the_fleet_needs_them() -> None:
    fleet = mesh([290_000] * 2 + [SMALL] * 4, granule=1)
    halves = (tuple(f"gpu:{n}" for n in range(2)), tuple(f"gpu:{n}" for n in range(2, 6)))
    domains = tuple(Domain(id=f"half{n}", kind="nvlink", members=half) for n, half in enumerate(halves))
    admission = answered(replace(fleet, domains=domains), Placement(prefill="gpu:0", decode="gpu:2"))
    [change] = degree(admission)
    assert admit(change.ask).verdict == "admitted"
    assert change.document == {
        "flag": "--decode", "from": "gpu:2", "to": "gpu:2,gpu:3,gpu:4,gpu:5",
        "and": [{"flag": "--prefill", "from": "gpu:0", "to": "gpu:0,gpu:1"}],
    }  # fmt: skip


def test_unlike_degrees_of_workers_are_told_by_phase() -> None:
    fleet = mesh([290_000] * 4 + [SMALL] * 4, granule=1)
    halves = (tuple(f"gpu:{n}" for n in range(4)), tuple(f"gpu:{n}" for n in range(4, 8)))
    domains = tuple(Domain(id=f"half{n}", kind="nvlink", members=half) for n, half in enumerate(halves))
    placed = Placement(prefill="gpu:0,gpu:1", decode="gpu:4,gpu:5", tp=(2, 2))
    [change] = degree(answered(replace(fleet, domains=domains), placed))
    parts = [change.document, *change.document["and"]]
    assert [(part["flag"], part["to"]) for part in parts] == [
        ("--decode-tp", 4), ("--decode", "gpu:4,gpu:5,gpu:6,gpu:7"),
    ]  # fmt: skip


def test_a_fleet_without_likeness_says_how_far_its_groups_were_searched() -> None:
    fleet = mesh([420_000 + number for number in range(9)], granule=1, pool=1)
    # Every rank has room, and nothing can be staged: each group fails for its way.
    links = tuple(link for link in fleet.links if link.peer_access is None)
    alone = replace(fleet, links=links)
    found = degree(answered(alone))
    assert not found.changes
    row = next(each for each in dimensions(answered(alone)) if each.name == "tensor-parallel degree")
    assert row.searched.startswith("searched ")
    _, _, table = counterfactuals(answered(alone))
    assert any("searched" in each for each in table)
