"""The event loop agrees with a slow oracle, event for event, on random small cases."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from scenarios.simulation import columns as col
from scenarios.simulation import engine
from scenarios.simulation.engine import Outcome, simulate
from tests.scenarios.simulation.sim_cases import config as config_of
from tests.scenarios.simulation.sim_cases import configs, costs
from tests.scenarios.simulation.sim_oracle import Oracle

TIMES = {"adm": col.TADM, "pend": col.TPEND, "hs": col.THS, "he": col.THE, "first": col.TFIRST, "done": col.TDONE}
STATES = {"finished": col.FINISHED, "refused": col.REFUSED}


def gaps_of(outcome: Outcome) -> list[int]:
    """Every gap, to the picosecond below."""
    out = []
    for first, growth, steps, tokens, q in outcome.gaps.tolist():
        out += [(first + i * growth) / q for i in range(steps) for _ in range(tokens)]
    return out


def story(row: Any) -> dict[str, int]:
    found = {name: int(row[column]) for name, column in TIMES.items() if row[column] >= 0}
    return found | {"pw": int(row[col.PW]), "dw": int(row[col.DW]), "tries": int(row[col.TRIES]),
                    "ousted": int(row[col.PREEMPTED]), "redone": int(row[col.REDONE])}  # fmt: skip


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(config=configs())
def test_every_event_is_that_of_the_oracle(config: col.Config) -> None:
    agree(config)


def test_a_cache_that_is_computed_again_after_a_handoff_gives_its_blocks_back() -> None:
    """Known by its hashes on a decode worker it was let go by nobody, loop and oracle alike: found by a deadlock."""
    agree(config_of([(0, 8, 30), (0, 8, 30)], blocks=[100, 12], hash_tokens=4, hashes=[[0, 1], [2, 3]]))


def test_the_most_held_counts_growth_until_a_handoff_is_cut_short() -> None:
    """Its prefill worker fails in the midst of a decode stretch: found by a long search."""
    cost = costs(3, **dict.fromkeys(("WC", "W0", "WR", "HC", "H0", "ACP", "ACD", "AB", "UP0", "UP1"), 0), FIXED=7)
    cost[1, [col.WC, col.AB, col.UP1]] = 6, 1, 4
    legs = [(0, 0, 1, [0], [1024]), (0, 5, 1, [0], [1024])]
    agree(config_of([(33, 3, 3), (52, 8, 5)], 1, 2, cost=cost, q=[3, 1, 1], blocks=[3, 4, 3], max_seqs=[1, 2, 3],
                    budget=[3, 2, 2], legs=legs, domains=[1, 0, 1], route_decode=2,
                    outages=[(37, 0, 2), (61, 1, 2), (106, 0, 0), (178, 1, 0)]))  # fmt: skip


def test_a_request_that_gets_no_token_of_a_step_reads_no_state() -> None:
    """Decoding ones take all tokens of the step; random cases seldom meet it."""
    lengths = [(1, 8, 12), (1, 8, 3), (8, 3, 6), (48, 7, 3)]
    agree(config_of(lengths, 1, 1, cost=costs(2, SB=5), blocks=[100, 7], max_seqs=8, budget=[16, 2]))


@pytest.mark.parametrize("block", [2, 4])
def test_blocks_of_a_stretch_are_taken_before_one_of_its_requests_lets_go(block: int) -> None:
    """Else known prefixes would stay that single steps had let go: found by a long search of the test above."""
    lengths = [(153, 8, 3), (155, 8, 4), (159, 6, 11), (178, 4, 13), (247, 7, 12), (260, 16, 12), (331, 6, 3),
               (336, 10, 8), (338, 17, 8)]  # fmt: skip
    names = ("FIXED", "WC", "W0", "WR", "HC", "H0", "ACP", "ACD", "AB", "UP0", "UP1", "DN0", "DN1")
    cost = costs(1, **dict(zip(names, (5, 5, 5, 4, 3, 5, 0, 4, 4, 3, 3, 1, 1), strict=True)))
    hashes = [[4, 3], [3, 1], [1], [], [], [1, 3, 2, 4], [], [0], [5, 0, 2, 3]]
    agree(config_of(lengths, 1, 0, cost=cost, q=2, blocks=14, max_seqs=2, budget=3, block=block, hash_tokens=4,
                    hashes=hashes))  # fmt: skip


def over_time(oracle: Oracle, last: int, width: int, bins: int) -> Any:
    """(rows, series, bins) means of the oracle's levels, from one sample to the next."""
    sums = np.zeros((bins, *np.shape(oracle.levels())))
    # The oracle also looks at ends of steps that a failure cut short, after the last event.
    ends = [min(time, last) for time, _ in oracle.samples[1:]] + [last]
    for (begin, levels), end in zip(oracle.samples, ends, strict=True):
        for at in range(begin // width, min(bins - 1, end // width) + 1):
            sums[at] += np.array(levels) * max(0, min(end, (at + 1) * width) - max(begin, at * width))
    wide = [min(last, (at + 1) * width) - at * width for at in range(bins)]
    return np.moveaxis(sums / np.maximum(1, wide)[:, None, None], 0, 2)


def agree_over_time(config: col.Config, outcome: Outcome, oracle: Oracle) -> None:
    last = int(outcome.counters[col.LAST_TIME])
    expected = over_time(oracle, last, outcome.bin_ps, outcome.levels.shape[2])
    assert np.allclose(outcome.levels, expected, rtol=1e-9, atol=1e-9)
    last_ones = [
        [r.id, r.pw, r.dw, *[r.spans[leg] for leg in sorted(r.spans)]] for r in oracle.requests if "he" in r.times
    ]
    found = [
        [*row[:3], *[[begin, end] for begin, end in zip(row[3::2], row[4::2], strict=True) if begin >= 0]]
        for row in outcome.moves.tolist()
    ]
    assert sorted(found) == sorted(last_ones + oracle.lost)


@pytest.fixture(autouse=True)
def narrow_bins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small cases last nanoseconds: bins begin at 1 ps, so that they are many, and grow."""
    monkeypatch.setattr(engine, "LEAST_BIN", 1)


def agree(config: col.Config) -> None:
    outcome, oracle = simulate(config), Oracle(config).simulate()
    for r in oracle.requests:
        row = outcome.requests[r.id]
        assert STATES.get(r.state, -1) == (int(row[col.ST]) if row[col.ST] in STATES.values() else -1), r
        mine = {"pw": r.pw, "dw": r.dw, "tries": r.tries, "ousted": r.ousted, "redone": r.redone} | r.times
        mine.pop("layer", None)
        assert story(row) == mine, r
    for w in oracle.workers:
        row = outcome.workers[w.id]
        assert (row[col.BUSY], row[col.STEPS], row[col.PEAK]) == (w.busy_time, w.steps, w.peak)
    ours, theirs = sorted(gaps_of(outcome)), sorted(oracle.gaps)
    assert len(ours) == len(theirs)
    assert np.allclose(ours, theirs, atol=1.0, rtol=0)
    nothing_is_left_behind(config, outcome)
    agree_over_time(config, outcome, oracle)


def nothing_is_left_behind(config: col.Config, outcome: Outcome) -> None:
    """Where all requests ended, every worker has all its blocks, slots and tokens back: said by no oracle."""
    if not np.isin(outcome.requests[:, col.ST], list(STATES.values())).all():
        return
    each = config.hash_tokens // config.block
    left = outcome.workers[:, col.FREE] + outcome.workers[:, col.EVICTABLE] * each
    assert left.tolist() == config.blocks.tolist()
    assert not outcome.workers[:, [col.NRUN, col.INFLIGHT, col.NREQ]].any()
    assert not outcome.workers[config.role == col.PREFILL, col.TOKENS].any()
