"""What the planner's waybills say of the handoffs of a run between two devices, held against what the run says."""

from __future__ import annotations

from planner.predict import predict
from planner.request import resolve
from scenarios.simulation import columns as col
from scenarios.simulation.engine import Outcome
from scenarios.simulation.moved import edges, handoffs
from scenarios.simulation.over_time import edges_over_time
from scenarios.simulation.plant import Plant, handoff_request, placed
from scenarios.simulation.traffic import Traffic


def bytes_are_the_planners(plant: Plant, traffic: Traffic, outcome: Outcome) -> None:
    """Bytes and copies of every edge, over time too, and bytes of all handoffs one way. All requests have ended."""
    assert (outcome.requests[:, col.ST] == col.FINISHED).all()
    assert set(outcome.moves[:, 0].tolist()) == set((traffic.out > 1).nonzero()[0].tolist())
    expected: dict[tuple[str, str, str], list[int]] = {}
    one_way = 0
    for request in outcome.moves[:, 0].tolist():
        wanted = handoff_request(plant.spec, int(traffic.prompt[request]), int(traffic.out[request]))
        workload = resolve(wanted, plant.model)
        prediction = predict(plant.fleet, plant.model, workload, placed(plant.spec, "gpu:0", "gpu:1"))
        one_way += sum(row.bytes for row in prediction.handoff_rows)
        for leg in (leg for row in prediction.handoff_rows for leg in row.legs or ()):
            held = expected.setdefault((leg.src, leg.dst, leg.kind), [0, 0])
            held[0] += leg.bytes
            held[1] += leg.copies
    last = int(outcome.counters[col.LAST_TIME])
    found = {(e["src"], e["dst"], e["kind"]): [e["bytes"], e["copies"]] for e in edges(plant, traffic, outcome, last)}
    assert found == expected
    over_time = edges_over_time(plant, traffic, outcome, last)
    assert {edge: sum(told[0]) for edge, told in over_time.items()} == {e: held[0] for e, held in expected.items()}
    assert sum(row["bytes"] for row in handoffs(plant, traffic, outcome)) == one_way
