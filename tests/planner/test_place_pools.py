"""Pools against brute force over all choices of devices; packing, bounds, routing, rules and what is refused."""

from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleet.checkpoints import load_model
from fleet.errors import DescriptionError
from fleet.load import load_fleet
from fleet.machine import Fleet, Host, Switch
from fleet.placement import Placement
from planner.admit import Ask, admit
from planner.place.candidate import seconds_of
from planner.place.classes import classes_of
from planner.place.constraints import Constraints
from planner.place.pairs import PairSearch, Question
from planner.place.pools import PoolQuestion, PoolSearch
from planner.place.regions import Cell, Sizes, packed
from planner.place.screen import Screen, told
from planner.request import Request
from tests.planner.fleets import device
from tests.planner.test_place_pairs import rated

MODEL = load_model(None)
REQUEST = Request(prompt_tokens=40, new_tokens=24)


def ask_of(fleet: Fleet, **more: Any) -> Ask:
    """The question on a fleet; its placement is not looked at."""
    request = more.pop("request", REQUEST)
    return Ask(fleet=fleet, model=MODEL, request=request, placement=Placement(prefill="-", decode="-"), **more)


def boards(*sizes: int, rates: tuple[int, ...] = (), latency: int | None = 2, net: int = 25) -> Fleet:
    """Boards of so many cards behind a switch each, all cards at one leaf of the network."""
    devices, links, hosts, switches = [], [], [], [Switch(id="leaf", kind="net")]
    for number, size in enumerate(sizes):
        host, switch = f"b{number}/host", f"b{number}/switch"
        hosts.append(Host(id=host))
        switches.append(Switch(id=switch, kind="nvlink", host=host))
        for index in range(size):
            name = f"b{number}/gpu:{index}"
            devices.append(replace(device(name), host=host, sku="card"))
            rate = rates[number] if number < len(rates) else 450
            for ends, figures in (
                ((name, switch), (rate, latency, "direct", "nvlink")), ((name, host), (50, 5, None, "pcie")),
                ((name, "leaf"), (net, 5, "direct", "net")),
            ):  # fmt: skip
                links += [rated(*ends, *figures), rated(*ends[::-1], *figures)]
    return Fleet(
        name="boards", hosts=tuple(hosts), devices=tuple(devices), links=tuple(links), switches=tuple(switches)
    )


def groups(fleet: Fleet, free: list[str], ranks: int) -> list[tuple[str, ...]]:
    """All workers of so many ranks within one domain, in the order of the fleet."""
    near = classes_of(fleet).near
    return [
        group for group in itertools.combinations(free, ranks)
        if ranks == 1 or frozenset.intersection(*(near.domains[name] for name in group))
    ]  # fmt: skip


def brute(fleet: Fleet, sizes: Sizes, ask: Ask, *, nearest: bool = False) -> Fraction | None:
    """The least worst handoff over every choice of disjoint workers; None where none is admitted and priced."""
    screen = Screen(ask, tp=sizes.ranks)
    names = [each.id for each in fleet.devices]
    best: Fraction | None = None

    def chosen(free: list[str], count: int, ranks: int) -> Any:
        if not count:
            yield ()
            return
        for group in groups(fleet, free, ranks):
            rest = [name for name in free if name not in group and name > group[0]]
            for more in chosen(rest, count - 1, ranks):
                yield (group, *more)

    for prefill in chosen(names, sizes.workers[0], sizes.ranks[0]):
        used = {name for worker in prefill for name in worker}
        left = [name for name in names if name not in used]
        for decode in chosen(left, sizes.workers[1], sizes.ranks[1]):
            times = []
            for other in decode:
                found = [screen.pair(",".join(one), ",".join(other)) for one in prefill]
                seconds = [seconds_of(each.handoff) if each.verdict == "admitted" else None for each in found]
                good = [time for time in seconds if time is not None]
                times.append(min(good, default=None) if nearest else max(good) if len(good) == len(seconds) else None)
            if None not in times:
                worst = max(time for time in times if time is not None)
                best = worst if best is None else min(best, worst)
    return best


@given(
    shape=st.sampled_from([(2, 2), (3, 2), (1, 1, 2), (4, 1), (3, 3)]),
    workers=st.sampled_from([(1, 1), (1, 2), (2, 1), (2, 2)]),
    ranks=st.sampled_from([(1, 1), (1, 1), (2, 1), (1, 2), (2, 2)]),
    rates=st.sampled_from([(), (450, 100), (50, 450, 300)]),
    latency=st.sampled_from([None, 2]), nearest=st.booleans(),
)  # fmt: skip
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_pool_is_the_best_of_all_choices_or_says_how_far_it_may_be(shape, workers, ranks, rates, latency, nearest):
    fleet = boards(*shape, rates=rates, latency=latency)
    sizes = Sizes(workers=workers, ranks=ranks)
    ask = ask_of(fleet)
    if sizes.devices > len(fleet.devices):
        return
    question = PoolQuestion(
        ask=ask, prefill_workers=(workers[0],), decode_workers=(workers[1],), prefill_tp=(ranks[0],),
        decode_tp=(ranks[1],), routing="nearest" if nearest else "any",
    )  # fmt: skip
    wanted = brute(fleet, sizes, ask, nearest=nearest)
    if wanted is None:
        with pytest.raises(DescriptionError, match="in one link domain"):
            PoolSearch(question).run()
        return
    admitted = PoolSearch(question).run().admitted
    pool = admitted[0]
    assert len(set(pool.devices)) == sizes.devices
    seconds = seconds_of(pool.figures.handoff)
    assert seconds is not None
    if pool.bound is None:
        assert seconds == wanted
    else:
        assert pool.bound <= wanted <= seconds
    if ranks == (1, 1) and not nearest and len(set(rates[: len(shape)])) < 2:
        assert pool.bound is None, "symmetry allows a proof"


@given(fleet=st.sampled_from([boards(4, 2), boards(2, 2, rates=(450, 100)), boards(5, latency=None)]),
       ranks=st.sampled_from([(2, 1), (1, 2), (2, 2)]), data=st.data())  # fmt: skip
@settings(max_examples=30, deadline=None)
def test_a_screen_of_workers_says_what_admitting_them_says(fleet: Fleet, ranks, data):
    names = data.draw(st.permutations([each.id for each in fleet.devices]))
    ask = ask_of(fleet)
    ends = (",".join(names[: ranks[0]]), ",".join(names[ranks[0] : sum(ranks)]))
    screen = Screen(ask, tp=ranks)
    assert screen.pair(*ends) == told(admit(replace(ask, placement=screen.placement(*ends))))


@given(
    counts=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 5)), min_size=1, max_size=4),
    workers=st.tuples(st.integers(1, 4), st.integers(1, 4)), ranks=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    one_each=st.booleans(), served=st.sampled_from([None, 1, 2]),
)  # fmt: skip
@settings(max_examples=200, deadline=None)
def test_packing_finds_room_exactly_where_there_is_some(counts, workers, ranks, one_each, served):
    numbers = itertools.count()
    cells = [Cell(*([next(numbers) for _ in range(count)] for count in cell)) for cell in counts]
    sizes = Sizes(workers=workers, ranks=ranks)

    def possible(at: int, left: tuple[int, int]) -> bool:
        if max(left) <= 0:
            return True
        if at == len(cells):
            return False
        return any(
            cells[at].fits((x, y), ranks) and (not one_each or x + y <= 1) and (served is None or y <= served * x)
            and possible(at + 1, (left[0] - x, left[1] - y))
            for x in range(max(0, left[0]) + 1) for y in range(max(0, left[1]) + 1)
        )  # fmt: skip

    found = packed(cells, sizes, one_each=one_each, served=served)
    assert (found is not None) == possible(0, workers)
    if found is not None:
        assert (len(found[0]), len(found[1])) == workers
        assert all(len(worker) == size for side, size in zip(found, ranks, strict=True) for worker in side)
        used = [number for side in found for worker in side for number in worker]
        assert len(set(used)) == len(used)


def test_two_roots_are_shared_out_when_each_decode_worker_is_served_by_its_nearest():
    ask = ask_of(load_fleet("h100-two-roots"))
    common: dict[str, Any] = {"ask": ask, "prefill_workers": (2,), "decode_workers": (4,)}
    near = PoolSearch(PoolQuestion(**common, routing="nearest")).run().admitted[0]
    assert near.prefill == (("gpu:0",), ("gpu:4",))
    assert near.decode == (("gpu:1",), ("gpu:2",), ("gpu:5",), ("gpu:6",))
    assert near.bound is None
    anyone = PoolSearch(PoolQuestion(**common)).run().admitted[0]
    assert anyone.staged, "six cards do not fit under one root"
    assert anyone.bound is None
    assert seconds_of(anyone.figures.handoff) > seconds_of(near.figures.handoff)


def test_a_worker_lies_in_one_domain_and_keeps_to_the_rules():
    fleet = boards(4, 4)
    common: dict[str, Any] = {"prefill_workers": (1,), "decode_workers": (1,), "prefill_tp": (2,), "decode_tp": (2,)}
    pool = PoolSearch(PoolQuestion(ask=ask_of(fleet), **common)).run().admitted[0]
    assert {name.split("/")[0] for name in pool.devices} == {"b0"}
    apart = PoolQuestion(ask=ask_of(fleet), **common, constraints=Constraints(required=("spread",)))
    pool = PoolSearch(apart).run().admitted[0]
    homes = [{name.split("/")[0] for name in worker} for worker in (*pool.prefill, *pool.decode)]
    assert sorted(map(sorted, homes)) == [["b0"], ["b1"]]
    gone = Constraints(excluded=frozenset(f"b0/gpu:{i}" for i in range(3)), required=("same-node",))
    pool = PoolSearch(PoolQuestion(ask=ask_of(fleet), **common, constraints=gone)).run().admitted[0]
    assert {name.split("/")[0] for name in pool.devices} == {"b1"}


def test_avoided_devices_are_in_a_pool_only_where_the_size_needs_them():
    sizes: dict[str, Any] = {"prefill_workers": (2,), "decode_workers": (2, 6)}
    avoided = Constraints(avoided=frozenset({"gpu:0"}))
    question = PoolQuestion(ask=ask_of(load_fleet("hgx-h100")), constraints=avoided, **sizes)
    small, whole = PoolSearch(question).run().admitted
    assert (len(small.decode), small.broken) == (2, ())
    assert (len(whole.decode), whole.broken) == (6, ("avoid gpu:0",))


def test_full_devices_are_passed_over_and_told_when_nothing_else_is_left():
    fleet = boards(4)
    full = [replace(each, in_use=79 * 2**30) if each.id != "b0/gpu:2" else each for each in fleet.devices]
    some = replace(fleet, devices=(*full[:1], *fleet.devices[1:]))
    pool = PoolSearch(PoolQuestion(ask=ask_of(some), decode_workers=(2,))).run().admitted[0]
    assert "b0/gpu:0" not in pool.devices
    answer = PoolSearch(PoolQuestion(ask=ask_of(replace(fleet, devices=tuple(full))))).run()
    assert answer.verdict == "refused"
    assert answer.others[0].codes == ("EXCEEDS_BUDGET",)
    assert answer.others[0].figures.handoff is None


def test_a_pool_of_one_and_one_is_the_best_pair():
    for name in ("hgx-h100", "gb200-nvl72", "h100-two-roots", "two-gpu-staged", "gpu-and-cpu"):
        ask = ask_of(load_fleet(name))
        pair = PairSearch(Question(ask=ask)).run().admitted[0]
        pool = PoolSearch(PoolQuestion(ask=ask)).run().admitted[0]
        assert seconds_of(pool.figures.handoff) == seconds_of(pair.figures.handoff), name


def test_more_devices_than_there_are_and_degrees_that_do_not_divide_are_told():
    ask = ask_of(load_fleet("hgx-h100"))
    with pytest.raises(DescriptionError, match="takes 10 devices, and the fleet has 8"):
        PoolSearch(PoolQuestion(ask=ask, prefill_workers=(9,))).run()
    with pytest.raises(DescriptionError, match=r"--decode-tp 8 query heads .* do not divide by 3 ranks"):
        PoolSearch(PoolQuestion(ask=ask, decode_tp=(3,)))
    many = tuple(range(1, 1000))
    with pytest.raises(DescriptionError, match="name fewer"):
        PoolSearch(PoolQuestion(ask=ask, prefill_workers=many, decode_workers=many))


def test_throughput_per_device_is_that_of_the_slower_side():
    ask = ask_of(load_fleet("hgx-h100"))
    search = PoolSearch(PoolQuestion(
        ask=ask, prefill_workers=(1, 2), decode_workers=(1, 2, 3), batches=(1, 4), objective="throughput"
    ))  # fmt: skip
    rows = search.run().admitted
    assert len(rows) == 12
    rates = [each.figures.throughput for each in rows]
    assert None not in rates
    assert rates == sorted(rates, reverse=True)
    best = rows[0]
    pair = search.admission(best)
    assert pair.verdict == "admitted"
    assert best.figures.tpot is not None
    decode = best.figures.tpot.seconds * pair.workload.decode_passes
    assert best.figures.throughput * best.figures.devices <= len(best.decode) * best.batch * 24 / decode
