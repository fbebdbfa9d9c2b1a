"""The event loop agrees with a slow oracle, event for event, on random small cases."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings

from scenarios.simulation import columns as col
from scenarios.simulation.engine import Outcome, simulate
from tests.scenarios.simulation.sim_cases import configs
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
