"""A record of each request, one JSON object a line, in the order of arrival; null: it never came so far."""

from __future__ import annotations

import json
from collections.abc import Iterator

from scenarios.simulation import columns as col
from scenarios.simulation.engine import Outcome
from scenarios.simulation.plant import Plant
from scenarios.simulation.traffic import Traffic

SLICE = 4096
STATES = {col.FINISHED: "finished", col.REFUSED: "refused"}
TIMES = {
    "prefill_start_ps": col.TADM, "prefill_end_ps": col.TPEND, "handoff_start_ps": col.THS, "handoff_end_ps": col.THE,
    "first_token_ps": col.TFIRST, "end_ps": col.TDONE,
}  # fmt: skip


def _rows(traffic: Traffic, outcome: Outcome) -> Iterator[tuple[int, int, int, list[int]]]:
    """Arrival, prompt, answer and columns of each request; as Python's numbers only some at a time."""
    for begin in range(0, len(traffic.arrival), SLICE):
        part = slice(begin, begin + SLICE)
        columns = (traffic.arrival[part], traffic.prompt[part], traffic.out[part], outcome.requests[part])
        yield from zip(*(column.tolist() for column in columns), strict=True)


def records(plant: Plant, traffic: Traffic, outcome: Outcome) -> Iterator[str]:
    """The lines, each with its newline. Times are whole picoseconds from the first arrival's clock."""
    names = plant.device_of
    for number, (arrival, prompt, out, row) in enumerate(_rows(traffic, outcome)):
        record = {
            "request": number, "state": STATES.get(row[col.ST], "unfinished"), "arrival_ps": arrival,
            "prompt_tokens": prompt, "new_tokens": out,
            "prefill": None if row[col.PW] < 0 else names[row[col.PW]],
            "decode": None if row[col.DW] < 0 else names[row[col.DW]],
            **{name: None if row[column] < 0 else row[column] for name, column in TIMES.items()},
            "retries": row[col.TRIES], "preemptions": row[col.PREEMPTED], "handoffs_lost": row[col.REDONE],
        }  # fmt: skip
        yield json.dumps(record, separators=(",", ":")) + "\n"
