"""Laws of queues: what is known in closed form must come out of the event loop."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from fleet.errors import InconclusiveError
from scenarios.simulation import columns as col
from scenarios.simulation.costs import step_costs
from scenarios.simulation.curves import Curve
from scenarios.simulation.engine import Outcome, simulate
from scenarios.simulation.ways import Part, WayLeg, leg_units
from tests.scenarios.simulation.sim_cases import config, costs, ints

MS = 10**9
SERVICE = 10 * MS


def queue_of(services: Any, gaps: Any, servers: int = 1) -> tuple[col.Config, Outcome]:
    """A queue: requests of one new token, each alone on a prefill worker for 1e6 ps a token."""
    unit = 10**6
    prompts = np.maximum(1, np.rint(services / unit)).astype(np.int64)
    cost = costs(servers + 1, **dict.fromkeys(("FIXED", "W0", "WR", "HC", "H0", "ACP", "ACD", "AB"), 0),
                 WC=unit, UP0=0, UP1=0, DN0=0, DN1=0)  # fmt: skip
    arrival = np.cumsum(gaps).astype(np.int64)
    made = config(
        [(0, 1, 1)] * len(prompts), servers, 1, cost=cost, max_seqs=1, budget=2**40, blocks=2**40, block=2**20,
        route_prefill=col.LEAST_LOADED,
    )._replace(arrival=arrival, prompt=prompts, out=ints([1] * len(prompts)))  # fmt: skip
    return made, simulate(made)


def mean_wait(made: col.Config, outcome: Outcome) -> float:
    return float((outcome.requests[:, col.TADM] - made.arrival).mean())


@pytest.mark.parametrize("load", [0.3, 0.7])
def test_one_worker_with_random_service_is_mm1(load: float) -> None:
    """Mean wait of M/M/1: load / (1 - load) * service (Kendall's notation; any textbook)."""
    rng = np.random.default_rng(7)
    n = 300_000
    made, outcome = queue_of(rng.exponential(SERVICE, n), rng.exponential(SERVICE / load, n))
    assert mean_wait(made, outcome) == pytest.approx(load / (1 - load) * SERVICE, rel=0.05)


def test_one_worker_with_equal_service_is_md1() -> None:
    """Mean wait of M/D/1: half of M/M/1's (Pollaczek-Khinchine)."""
    rng, load = np.random.default_rng(8), 0.7
    n = 300_000
    made, outcome = queue_of(np.full(n, SERVICE), rng.exponential(SERVICE / load, n))
    assert mean_wait(made, outcome) == pytest.approx(load / (2 * (1 - load)) * SERVICE, rel=0.03)


def erlang_c(servers: int, offered: float) -> float:
    """The share that waits in M/M/c with `offered` = arrivals * service."""
    last = offered**servers / math.factorial(servers) * servers / (servers - offered)
    return last / (sum(offered**k / math.factorial(k) for k in range(servers)) + last)


def test_workers_that_share_one_queue_are_erlang_c() -> None:
    """Slots of one worker are servers when a step is of one request; here: several handoffs for one queue of slots.

    A prefill worker takes one request at a time, so c servers with one queue are c decode slots: requests of equal
    prompts whose decode is random. A step's time does not depend on how many run, so each slot serves alone.
    """
    rng = np.random.default_rng(9)
    n, servers, step = 120_000, 4, MS
    tokens = rng.geometric(1 / 50, n).astype(np.int64) + 1
    service = (tokens - 1) * step
    gaps = rng.exponential(float(service.mean()) / 3.0, n)
    cost = costs(2, **dict.fromkeys(("W0", "WR", "WC", "HC", "H0", "ACP", "ACD", "AB", "UP0", "UP1", "DN0", "DN1"), 0))
    cost[0, col.FIXED], cost[1, col.FIXED] = 1, step
    made = config(
        [(0, 1, 1)] * n, cost=cost, max_seqs=[1, servers], budget=64, blocks=2**40, block=2**20,
        legs=[(0, 0, 1, [0], [1024])],
    )._replace(arrival=np.cumsum(gaps).astype(np.int64), prompt=ints([1] * n), out=tokens)  # fmt: skip
    r = simulate(made).requests
    waited = r[:, col.TDONE] - r[:, col.TFIRST] - service
    # Steps begin on a common beat, which a request in an idle slot waits for: half a step on average.
    expected = erlang_c(servers, 3.0) * float(service.mean()) / (servers - 3.0)
    assert float(waited.mean()) == pytest.approx(expected + step / 2, rel=0.06)


def test_little_holds_exactly() -> None:
    """Time-average in the system = requests * mean time in it / duration: two sums kept apart."""
    rng = np.random.default_rng(3)
    n = 2000
    made, outcome = queue_of(rng.exponential(SERVICE, n), rng.exponential(SERVICE * 1.2, n), servers=2)
    inside = (outcome.requests[:, col.TDONE] - made.arrival).sum()
    assert outcome.area == pytest.approx(float(inside), rel=1e-12)


def test_no_worker_idles_while_its_queue_holds_a_request() -> None:
    """Work conservation: the end of a queue of one worker is that of Lindley's recursion."""
    rng = np.random.default_rng(4)
    services, gaps = rng.exponential(SERVICE, 500), rng.exponential(SERVICE, 500)
    made, outcome = queue_of(services, gaps)
    end = 0
    for arrival, prompt, row in zip(made.arrival, made.prompt, outcome.requests, strict=True):
        end = max(end, int(arrival)) + int(prompt) * 10**6
        assert row[col.TDONE] == end
    assert outcome.workers[0, col.BUSY] == int(made.prompt.sum()) * 10**6


def test_two_handoffs_queue_or_share_one_link() -> None:
    """Two equal handoffs at once: one after another, or both at half the rate; the second ends at the same time."""
    legs = [(0, 1000, 1, [0], [1024])]
    ends = {}
    for share in (col.QUEUE, col.FAIR):
        made = config([(0, 8, 2), (0, 8, 2)], 2, 1, legs=legs, share=share, budget=16)
        r = simulate(made).requests
        ends[share] = sorted(int(v) for v in r[:, col.THE] - r[:, col.TPEND])
    assert ends[col.QUEUE] == [8000, 16000]
    assert ends[col.FAIR] == [16000, 16000]


def test_pull_waits_for_a_slot_and_push_does_not() -> None:
    starts = {}
    for pull in (0, 1):
        made = config([(0, 8, 50), (0, 8, 50)], 2, 1, max_seqs=[4, 4, 1], pull=pull)
        r = simulate(made).requests
        starts[pull] = int(r[1, col.THS])
        assert (r[1, col.THS] >= r[0, col.TDONE]) == bool(pull)
    assert starts[1] > starts[0]


def test_layers_hide_the_handoff_behind_the_prompt() -> None:
    """By layer, what is left after the prompt is one layer's part where the link is faster than the computation."""
    cost = costs(2, WC=100_000)
    for layers in (0, 4):
        made = config([(0, 8, 2)], cost=cost, legs=[(0, 1000, 1, [0], [1024])], layers=layers)
        row = simulate(made).requests[0]
        assert row[col.THE] - row[col.TPEND] == (8000 if layers == 0 else 2000)


def test_a_known_prefix_is_not_computed_again() -> None:
    made = config([(0, 17, 2), (10**6, 17, 2)], hash_tokens=4, hashes=[[0, 1, 2, 3], [0, 1, 2, 3]])
    outcome = simulate(made)
    assert outcome.workers[0, col.HITS] == 16
    assert outcome.workers[0, col.COMPUTED] == 17 + 1


def test_a_failed_worker_loses_and_doubles_nobody() -> None:
    """Every request ends once; those of the failed worker were tried again."""
    requests = [(i * 50, 12, 9) for i in range(40)]
    made = config(requests, 2, 2, outages=[(700, 0, 2), (1500, 1, 2), (900, 0, 0), (1200, 1, 0)])
    outcome = simulate(made)
    assert (outcome.requests[:, col.ST] == col.FINISHED).all()
    assert outcome.requests[:, col.TRIES].sum() > 0
    assert (outcome.requests[:, col.GEN] == 9).all()


def test_requests_wait_for_ever_where_no_worker_comes_back() -> None:
    made = config([(0, 4, 3), (5000, 4, 3)], outages=[(1000, 0, 1)])
    states = simulate(made).requests[:, col.ST]
    assert states[0] == col.FINISHED
    assert states[1] not in (col.FINISHED, col.REFUSED)


def test_what_no_worker_holds_is_refused_and_the_others_go_on() -> None:
    made = config([(0, 4, 3), (1, 400, 3), (2, 4, 3)], blocks=10)
    assert simulate(made).requests[:, col.ST].tolist() == [col.FINISHED, col.REFUSED, col.FINISHED]


@pytest.mark.parametrize("share", [col.QUEUE, col.FAIR])
@pytest.mark.parametrize(("fixed", "leg"), [(2**59, 10), (5, 2**60)])
def test_what_takes_longer_than_a_run_may_last_is_left_and_no_time_wraps_around(
    fixed: int, leg: int, share: int
) -> None:
    made = config([(0, 8, 3)] * 40, 2, 1, cost=costs(3, FIXED=fixed), legs=[(leg, 0, 1, [0], [1024])], share=share)
    outcome = simulate(made)
    states = outcome.requests[:, col.ST]
    assert (states != col.FINISHED).any()
    assert outcome.counters[col.HEAP_SIZE] > 0
    assert 0 <= outcome.requests[:, col.TPEND : col.TDONE + 1].max() <= col.NEVER
    assert outcome.requests[:, col.TPEND : col.TDONE + 1].min() >= -1
    assert 0 <= outcome.counters[col.LAST_TIME] < col.NEVER


def test_a_leg_or_a_step_that_takes_weeks_is_told_in_words() -> None:
    part = Part(src="gpu:0", dst="gpu:1", kind="p2p", bytes=Curve(fixed=0, each=1), copies=Curve(fixed=1, each=0))
    with pytest.raises(InconclusiveError, match="from gpu:0 to gpu:1 would take 115 days"):
        leg_units(WayLeg(time=Curve(fixed=Fraction(0), each=Fraction(10**15)), parts=(part,), links=()), 10_000)
    names = ("FIXED", "EACH", "SB", "WC", "W0", "WR", "HC", "H0", "ACP", "ACD", "AB", "UP0", "UP1", "DN0", "DN1")
    slow = dict.fromkeys(names, Fraction(10**17))
    with pytest.raises(InconclusiveError, match="the longest step would take"):
        step_costs([slow], {}, dict.fromkeys(("tokens", "logits", "pairs", "positions"), 100), {})


def test_blocks_run_out_and_the_last_one_pays() -> None:
    made = config([(0, 8, 30), (0, 8, 30)], 1, 1, blocks=[100, 12], block=4)
    outcome = simulate(made)
    assert outcome.requests[:, col.PREEMPTED].tolist() == [0, 1]
    assert (outcome.requests[:, col.ST] == col.FINISHED).all()
    assert outcome.workers[1, col.PEAK] == 12
