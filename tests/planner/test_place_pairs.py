"""`place` against brute force: every pair admitted one by one says the same as the screen and the classes."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import permutations
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleet.errors import DescriptionError
from fleet.load import load_fleet
from fleet.machine import Budget, Domain, Fleet, Host, Link, Nic, Quantity, Switch
from fleet.placement import Placement
from planner.admit import Ask, admit
from planner.place.candidate import pareto, seconds_of
from planner.place.classes import pair_classes
from planner.place.constraints import Constraints, named_devices
from planner.place.floors import Floors
from planner.place.pairs import PairSearch, Question
from planner.place.screen import Screen, told
from planner.place.symmetry import symmetry_of
from planner.request import Request
from tests.planner.fleets import GB, device, known, llama2c
from tests.work import counted

MODEL = llama2c()
REQUESTS = (
    Request(prompt_tokens=40, new_tokens=24),
    Request(prompt_tokens=40, new_tokens=24, batch=3, kv_extent="blocks:16", kv_dtype="fp16"),
    Request(prompt_tokens=17, steps=40, attention="host"),
    Request(prompt_tokens=9, new_tokens=1),
    Request(prompt_tokens=30, new_tokens=9, kv_extent="allocated", positions=64),
)
TIGHT = 4 * 2**20


def ask_of(fleet: Fleet, request: Request = REQUESTS[0], **more: Any) -> Ask:
    """The question on a fleet; its placement is not looked at."""
    return Ask(fleet=fleet, model=MODEL, request=request, placement=Placement(prefill="-", decode="-"), **more)


def rated(src: str, dst: str, rate: int | None, latency: int | None, access: Any = None, kind: str = "pcie") -> Link:
    """A one-way link of so many GB/s and microseconds; None = unknown."""
    return Link(
        src=src, dst=dst, kind=kind, peer_access=access,
        bandwidth=Quantity() if rate is None else known(rate * GB),
        latency=Quantity() if latency is None else known(latency * 10**6),
    )  # fmt: skip


@st.composite
def small_fleets(draw: st.DrawFn) -> Fleet:
    """Two or three hosts of like or unlike devices, with switches and network cards, and holes in all of it."""
    hosts = [f"n{i}/host" for i in range(draw(st.integers(1, 3)))]
    capacity = st.sampled_from([None, TIGHT, 2**30, 2**30])
    devices, links, nics = [], [], []
    switches = [Switch(id="leaf", kind="net"), *(Switch(id=f"sw{i}", kind="nvlink") for i in range(2))]
    rate, latency = st.sampled_from([None, 10, 50, 50, 450]), st.sampled_from([None, 1, 1, 5])
    for number, host in enumerate(hosts):
        nic = f"n{number}/nic"
        nics.append(Nic(id=nic, host=host))
        for index in range(draw(st.integers(1, 3))):
            name = f"n{number}/gpu:{index}"
            one = device(name, capacity=draw(capacity), granule=draw(st.sampled_from([1, 4096])))
            memory = replace(one.memory, physical=draw(st.sampled_from([None, None, None, "slab"])))
            devices.append(replace(one, host=host, memories=(memory,), sku=draw(st.sampled_from(["a", "b"]))))
            far = draw(st.sampled_from(["sw0", "sw1", "leaf", nic]))
            access = draw(st.sampled_from(["direct", "direct", "staged", "unknown", None]))
            figures = (draw(rate), draw(latency))
            for ends in ((name, far), (far, name)):
                links.append(rated(*ends, *figures, access, "nvlink"))
            for ends in ((name, host), (host, name)):
                if draw(st.integers(0, 9)):
                    links.append(rated(*ends, *figures))
        links += [rated(*ends, 25, 2, "direct", "net") for ends in ((nic, "leaf"), ("leaf", nic))]
        links += [rated(*ends, 25, 2) for ends in ((nic, host), (host, nic)) if draw(st.booleans())]
    pools = st.sampled_from([Quantity(), Quantity(), known(64), known(10**6)])
    domains = (Domain(id="all", kind="nvlink", members=(devices[0].id, devices[-1].id)),) if draw(st.booleans()) else ()
    return Fleet(
        name="random", hosts=tuple(Host(id=host, pinned_pool=draw(pools)) for host in hosts), devices=tuple(devices),
        links=tuple(links), switches=tuple(switches), nics=tuple(nics), domains=domains, budget=Budget(reserve=7),
    )  # fmt: skip


def nameless(facts: Any) -> Any:
    """The same without the words that name what is unpriced."""
    return facts if facts.handoff is None else replace(facts, handoff=replace(facts.handoff, unpriced=()))


def brute(ask: Ask) -> dict[tuple[str, str], Any]:
    """Every ordered pair, admitted."""
    names = [each.id for each in ask.fleet.devices]
    return {
        (p, d): told(admit(replace(ask, placement=Placement(prefill=p, decode=d))))
        for p in names for d in names if p != d
    }  # fmt: skip


@given(fleet=small_fleets(), request=st.sampled_from(REQUESTS))
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_place_equals_admitting_every_pair_of_a_random_small_fleet(fleet: Fleet, request: Request):
    ask = ask_of(fleet, request)
    wanted = brute(ask)
    screen, symmetry = Screen(ask), symmetry_of(fleet)
    assert {pair: screen.pair(*pair) for pair in wanted} == wanted
    classes = {each.key: each for each in pair_classes(symmetry).pairs}
    counted = dict.fromkeys(classes, 0)
    for (p, d), facts in wanted.items():
        key = symmetry.pair_class(symmetry.number[p], symmetry.number[d])
        stands = classes[key]
        counted[key] += 1
        other = wanted[symmetry.names[stands.prefill], symmetry.names[stands.decode]]
        assert nameless(facts) == nameless(other), "told apart after all"
    assert counted == {key: each.count for key, each in classes.items()}
    if not wanted:
        return
    answer = PairSearch(Question(ask=ask)).run()
    assert answer.exact
    assert answer.considered == answer.possible == len(wanted)
    times = [(f.handoff is None or f.handoff.seconds is None, seconds_of(f.handoff) or 0)
             for f in wanted.values() if f.verdict == "admitted"]  # fmt: skip
    assert sum(each.alike or 0 for each in answer.admitted) == len(times)
    if times:
        best = answer.admitted[0]
        assert (seconds_of(best.figures.handoff) is None, seconds_of(best.figures.handoff) or 0) == min(times)
        found = PairSearch(Question(ask=ask)).best()
        assert found is not None
        assert seconds_of(found.figures.handoff) == seconds_of(best.figures.handoff)


@given(fleet=small_fleets(), drop=st.integers(0, 8))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_excluded_devices_take_no_part_and_classes_still_count_the_rest(fleet: Fleet, drop: int):
    names = [each.id for each in fleet.devices]
    gone = names[drop % len(names)]
    symmetry = symmetry_of(fleet)
    able = [name != gone for name in names]
    wanted: dict[Any, list[tuple[int, int]]] = {}
    for p in range(len(names)):
        for d in range(len(names)):
            if p != d and able[p]:
                wanted.setdefault(symmetry.pair_class(p, d), []).append((p, d))
    found = {each.key: (each.count, (each.prefill, each.decode)) for each in pair_classes(symmetry, able, None).pairs}
    assert found == {key: (len(pairs), min(pairs)) for key, pairs in wanted.items()}


@given(fleet=small_fleets(), request=st.sampled_from(REQUESTS[:2]))
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_renaming_devices_changes_names_only(fleet: Fleet, request: Request):
    if len(fleet.devices) < 2:
        return

    def renamed(name: str) -> str:
        return f"x{name}" if "gpu" in name else name

    other = replace(
        fleet,
        devices=tuple(replace(each, id=renamed(each.id)) for each in fleet.devices),
        links=tuple(replace(link, src=renamed(link.src), dst=renamed(link.dst)) for link in fleet.links),
        domains=tuple(replace(d, members=tuple(map(renamed, d.members))) for d in fleet.domains),
    )
    one, two = (PairSearch(Question(ask=ask_of(each, request))).run() for each in (fleet, other))
    assert [tuple(map(renamed, each.devices)) for each in one.admitted] == [each.devices for each in two.admitted]
    assert [seconds_of(each.figures.handoff) for each in one.admitted] == [
        seconds_of(each.figures.handoff) for each in two.admitted
    ]
    assert [(each.verdict, each.codes, each.alike) for each in one.others] == [
        (each.verdict, each.codes, each.alike) for each in two.others
    ]


def test_no_time_is_told_of_what_is_not_admitted():
    fleet = load_fleet("two-gpu-unknown")
    answer = PairSearch(Question(ask=ask_of(fleet))).run()
    assert answer.verdict == "unverified"
    assert not answer.admitted
    assert all(each.figures.handoff is None and each.figures.ttft is None for each in answer.others)
    assert {code for each in answer.others for code in each.codes} == {"CAPACITY_UNKNOWN"}
    unlinked = PairSearch(Question(ask=ask_of(load_fleet("pcie-l40s")))).run()
    assert [(each.verdict, each.codes) for each in unlinked.others] == [("unverified", ("PEER_ACCESS_UNKNOWN",))]


def test_a_board_of_eight_behind_one_switch_is_one_class():
    answer = PairSearch(Question(ask=ask_of(load_fleet("hgx-h100")))).run()
    assert [(each.devices, each.alike) for each in answer.admitted] == [(("gpu:0", "gpu:1"), 56)]
    assert answer.exact


def test_unlike_halves_are_ranked_and_a_ring_of_six_is_no_two_triangles():
    """Colours alone cannot tell a ring of six from two rings of three; swaps must not be believed but proven."""

    def rings(*sizes: int) -> Fleet:
        names = iter(f"gpu:{i}" for i in range(sum(sizes)))
        links, devices = [], []
        for size in sizes:
            ring = [next(names) for _ in range(size)]
            devices += [device(name) for name in ring]
            for a, b in zip(ring, [*ring[1:], ring[0]], strict=True):
                links += [rated(a, b, 50, 1, "direct"), rated(b, a, 50, 1, "direct")]
            links += [rated(*ends, 10, 1) for name in ring for ends in (("host", name), (name, "host"))]
        return Fleet(name="rings", hosts=(Host(id="host"),), devices=tuple(devices), links=tuple(links))

    for sizes, direct in (((6,), 12), ((3, 3), 12), ((3,), 6)):
        fleet = rings(*sizes)
        answer = PairSearch(Question(ask=ask_of(fleet))).run()
        assert sum(each.alike or 0 for each in answer.admitted if not each.staged) == direct
        assert sum(each.alike or 0 for each in answer.admitted) == answer.possible
    assert len(PairSearch(Question(ask=ask_of(rings(3, 3)))).run().admitted) < 30, "triangles have swaps"


def test_requirements_exclude_and_each_says_what_it_costs():
    ask = ask_of(load_fleet("hgx-h100"))
    with pytest.raises(DescriptionError, match=r"--require spread excludes every pair; without it 56 pairs are left"):
        PairSearch(Question(ask=ask, constraints=Constraints(required=("spread",)))).run()
    with pytest.raises(DescriptionError, match="contradict each other"):
        PairSearch(Question(ask=ask, constraints=Constraints(required=("spread", "same-node"))))
    only = named_devices(ask.fleet, ["gpu:2"], "--prefill")
    both = Constraints(prefill=only, excluded=frozenset({"gpu:3"}), decode=frozenset({"gpu:3", "gpu:5"}))
    answer = PairSearch(Question(ask=ask, constraints=both)).run()
    assert [each.devices for each in answer.admitted] == [("gpu:2", "gpu:5")]
    assert answer.considered == 1


def test_preferences_go_before_the_objective_and_are_told_where_broken():
    fleet = load_fleet("gb200-nvl72")
    ask = ask_of(fleet)
    free = PairSearch(Question(ask=ask)).run().admitted[0]
    assert not free.broken
    chosen = PairSearch(Question(ask=ask, constraints=Constraints(preferred=("spread",)))).run()
    assert len({name.split("/")[0] for name in chosen.admitted[0].devices}) == 2, "two trays: a tray is a node"
    assert chosen.admitted[-1].broken == ("spread",)
    avoided = Constraints(avoided=frozenset({"gpu:0"}))
    told_of = PairSearch(Question(ask=ask_of(load_fleet("two-gpu-nvlink")), constraints=avoided)).run()
    assert all(each.broken == ("avoid gpu:0",) for each in told_of.admitted)


@pytest.mark.parametrize("name", ["hgx-h100", "gb200-nvl72", "h100-two-roots"])
def test_devices_that_are_like_avoided_ones_go_before_them(name: str):
    fleet = load_fleet(name)
    avoided = frozenset(device.id for device in fleet.devices[:3])
    answer = PairSearch(Question(ask=ask_of(fleet), constraints=Constraints(avoided=avoided))).run()
    first = answer.admitted[0]
    assert first.broken == ()
    assert not {*first.prefill[0], *first.decode[0]} & avoided
    assert answer.considered == sum(each.alike or 0 for each in (*answer.admitted, *answer.others)) == answer.possible
    assert {len(each.broken) for each in answer.admitted} == {0, 1, 2}
    assert [len(each.broken) for each in answer.admitted] == sorted(len(each.broken) for each in answer.admitted)


def test_unknown_devices_are_told_with_the_nearest_name_all_at_once():
    with pytest.raises(DescriptionError) as caught:
        named_devices(load_fleet("hgx-h100"), ["gpu:9", "gpu:0", "gqu:1", "cpu*"], "--exclude")
    words = str(caught.value)
    assert len(caught.value.faults) == 3
    assert "did you mean gpu:1?" in words
    assert named_devices(load_fleet("hgx-h100"), ["gpu:2-3,gpu:7"], "--exclude") == {"gpu:2", "gpu:3", "gpu:7"}


def test_prices_rank_unlike_cards_and_the_pareto_set_holds_both_ends():
    slow = [rated(*ends, 10, 1, "direct") for ends in (("gpu:0", "gpu:1"), ("gpu:1", "gpu:0"))]
    fast = [rated(*ends, 400, 1, "direct") for ends in (("gpu:2", "gpu:3"), ("gpu:3", "gpu:2"))]
    names = [f"gpu:{i}" for i in range(4)]
    host = [rated(*ends, 5, 1) for name in names for ends in (("host", name), (name, "host"))]
    devices = tuple(replace(device(name), sku="cheap" if name < "gpu:2" else "dear") for name in names)
    fleet = Fleet(name="mixed", hosts=(Host(id="host"),), devices=devices, links=(*slow, *fast, *host))
    prices = {"cheap": Fraction(1), "dear": Fraction(4)}
    by_time = PairSearch(Question(ask=ask_of(fleet), prices=prices)).run()
    by_cost = PairSearch(Question(ask=ask_of(fleet), prices=prices, objective="cost")).run()
    assert set(by_time.admitted[0].devices) == {"gpu:2", "gpu:3"}
    assert set(by_cost.admitted[0].devices) == {"gpu:0", "gpu:1"}
    assert by_cost.admitted[0].figures.cost == 2
    front = [each.devices for each, kept in zip(by_time.admitted, pareto(by_time.admitted), strict=True) if kept]
    assert {frozenset(each) for each in front} == {frozenset(("gpu:2", "gpu:3")), frozenset(("gpu:0", "gpu:1"))}
    bare = PairSearch(Question(ask=ask_of(fleet), prices={"cheap": Fraction(1)}, objective="cost")).run()
    assert bare.admitted[-1].figures.cost is None, "a card without a price is not free"


def test_totals_near_two_to_the_63_are_admitted_whole():
    request = Request(prompt_tokens=40, new_tokens=24, batch=2**39)
    ask = ask_of(load_fleet("hgx-h100"), request)
    answer = PairSearch(Question(ask=ask)).run()
    assert not answer.admitted
    assert brute(ask)[("gpu:0", "gpu:1")].codes == answer.others[0].codes
    assert "EXCEEDS_CAPACITY" in answer.others[0].codes


def test_of_too_many_classes_the_rest_is_bounded(monkeypatch: pytest.MonkeyPatch):
    names = [f"gpu:{i}" for i in range(7)]
    links = [
        rated(a, b, 10 + 7 * i + j, 0, "direct") for i, a in enumerate(names) for j, b in enumerate(names) if a != b
    ]
    links += [rated(*ends, 5, 1) for name in names for ends in (("host", name), (name, "host"))]
    fleet = Fleet(name="unlike", hosts=(Host(id="host"),), devices=tuple(map(device, names)), links=tuple(links))
    ask = ask_of(fleet)
    whole = PairSearch(Question(ask=ask)).run()
    assert len(whole.admitted) == 42
    monkeypatch.setattr("planner.place.pairs.most_classes", lambda _: 12)
    part = PairSearch(Question(ask=ask, top=20)).run()
    assert not part.exact
    assert part.bound is not None
    seen = {each.devices for each in part.admitted}
    unseen = [seconds_of(each.figures.handoff) for each in whole.admitted if each.devices not in seen]
    assert len(unseen) == 30
    assert all(seconds is not None and seconds >= part.bound for seconds in unseen)
    assert len(part.admitted) == 12
    one = PairSearch(Question(ask=ask, top=1)).run()
    assert one.exact
    assert one.admitted[0].devices == whole.admitted[0].devices


THOUSAND = """schema: kvwaybill/fleet/1
name: thousand
templates:
  rack:
    nodes: [{id: n, template: hgx-h100, count: 25}]
    switches: [{id: leaf, kind: net, tier: 1}]
    links: [{from: "n*/gpu:*", to: leaf, kind: net, bandwidth: 400 Gb/s, peer_access: direct, bidirectional: true}]
nodes: [{id: rack, template: rack, count: 5}]
switches: [{id: spine, kind: net, tier: 2}]
links: [{from: "rack*/leaf", to: spine, kind: net, bandwidth: 400 Gb/s, peer_access: direct, bidirectional: true}]
"""


def test_the_best_pair_of_a_thousand_devices_asks_few_of_them_and_classes_count_a_million_pairs():
    ask = ask_of(load_fleet("thousand.yaml", text=THOUSAND))
    answer = PairSearch(Question(ask=ask)).run()
    assert [each.alike for each in answer.admitted] == [7000, 192000, 800000]
    assert answer.exact
    best, calls = counted(lambda: PairSearch(Question(ask=ask)).best())
    assert calls < 500_000, "half of one for each pair"
    assert best is not None
    assert best.devices == ("rack0/n0/gpu:0", "rack0/n0/gpu:1")


def unlike_nodes() -> Fleet:
    """Five nodes of three devices, every link of another rate: no two pairs are alike, many are as fast."""
    names = [f"n{i}/gpu:{j}" for i in range(5) for j in range(3)]
    links, devices = [], []
    for at, name in enumerate(names):
        node = name.split("/")[0]
        devices.append(replace(device(name), host=f"{node}/host"))
        for ends in ((name, f"{node}/switch"), (f"{node}/switch", name)):
            links.append(rated(*ends, 100 + at, 0, "direct", "nvlink"))
        for ends in ((name, "leaf"), ("leaf", name)):
            links.append(rated(*ends, 20 + at, 0, "direct", "net"))
        links += [rated(*ends, 10, 1) for ends in ((name, f"{node}/host"), (f"{node}/host", name))]
    return Fleet(
        name="unlike", hosts=tuple(Host(id=f"n{i}/host") for i in range(5)), devices=tuple(devices), links=tuple(links),
        switches=(*(Switch(id=f"n{i}/switch", kind="nvlink") for i in range(5)), Switch(id="leaf", kind="net")),
    )  # fmt: skip


def test_of_pairs_too_many_to_list_those_in_the_smallest_parts_are_looked_at(monkeypatch: pytest.MonkeyPatch):
    fleet = unlike_nodes()
    whole = PairSearch(Question(ask=ask_of(fleet), top=3)).run()
    assert whole.exact
    assert whole.considered == 15 * 14
    monkeypatch.setattr("planner.place.classes.MOST_LISTED", 60)
    part = PairSearch(Question(ask=ask_of(fleet), top=3)).run()
    assert part.considered < whole.considered
    assert part.admitted[0].devices == whole.admitted[0].devices
    best, bound = seconds_of(part.admitted[0].figures.handoff), part.bound
    assert bound is not None
    assert best is not None
    assert bound <= best
    assert not part.exact


def test_of_pairs_with_equal_bounds_the_first_of_the_fleet_is_looked_at_first():
    search = PairSearch(Question(ask=ask_of(unlike_nodes()), top=3))
    floors = Floors(search.screen, "handoff", {}, search._phase, lambda prefill, decode: 0)
    pairs = list(permutations(search.names, 2))
    ordered = floors.order(pairs)
    raws = {floors._raw(*pair) for pair in pairs}
    assert len({key for key, _ in ordered}) < len(raws), "unlike cuts make one key here"
    assert ordered == sorted(ordered)
