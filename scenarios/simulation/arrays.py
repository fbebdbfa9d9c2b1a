"""The arrays of the event loop, out of admitted workers, their ways, and the requests."""

from __future__ import annotations

from typing import Any

from fleet.errors import DescriptionError, InconclusiveError
from scenarios.simulation import columns as col
from scenarios.simulation.plant import Plant, spec_fault
from scenarios.simulation.spec import Spec
from scenarios.simulation.traffic import MAX_TOKENS, Traffic
from scenarios.simulation.ways import leg_units, ratios

ROUTES = {"round-robin": col.ROUND_ROBIN, "least-loaded": col.LEAST_LOADED, "same-domain": col.SAME_DOMAIN,
          "prefix-aware": col.PREFIX_AWARE}  # fmt: skip
MOST_PREFIX_CELLS = 2**27


def config_of(plant: Plant, traffic: Traffic) -> col.Config:
    """The event loop's arrays. Raises InconclusiveError where prefix blocks and workers are more than memory holds."""
    import numpy as np

    spec, workers = plant.spec, plant.workers
    n_prefill = len(spec.prefill.workers)
    reuse = spec.prefix_reuse and traffic.hash_tokens > 0
    if reuse and traffic.hash_tokens % spec.block_tokens:
        raise DescriptionError([spec_fault(
            spec, "block_tokens", f"{spec.block_tokens} does not divide the trace's blocks of {traffic.hash_tokens}"
        )])  # fmt: skip
    if reuse and plant.is_bent:
        raise InconclusiveError(
            f"prefix reuse is not simulated for {plant.model.name}, which keeps windows or states: what of them a known"
            " prefix leaves to the next request is the engine's own affair; leave prefix_reuse out"
        )
    hashes = traffic.hashes if reuse else np.zeros(0, np.int64)
    if len(hashes) and len(workers) * (int(hashes.max()) + 1) > MOST_PREFIX_CELLS:
        raise InconclusiveError("too many prefix blocks for so many workers: leave prefix reuse off")
    names = {name: i for i, name in enumerate(plant.device_of)}
    at_home = [tuple(dict.fromkeys(device.host for device in worker.devices)) for worker in workers]
    hosts = {home: i for i, home in enumerate(dict.fromkeys(at_home))}
    outages = _outages(spec, {device.id: i for i, worker in enumerate(workers) for device in worker.devices})
    rows = max(len(worker.costs.parts) for worker in workers)
    windows = sorted({window for worker in workers for window in worker.costs.windows})
    return col.Config(
        arrival=traffic.arrival, prompt=traffic.prompt, out=traffic.out, hashes=hashes,
        hash_at=traffic.hash_at if reuse else np.zeros(len(traffic.arrival) + 1, np.int64),
        role=_ints(worker.role for worker in workers), q=_ints(worker.costs.q for worker in workers),
        cost=np.array([worker.costs.rows(rows, windows) for worker in workers], np.int64), windows=_ints(windows),
        blocks=_ints(worker.blocks for worker in workers), max_seqs=_ints(worker.pool.max_seqs for worker in workers),
        budget=_ints(worker.pool.max_tokens for worker in workers),
        domain=_ints(hosts[home] for home in at_home),
        prefill_pool=_ints(range(n_prefill)), decode_pool=_ints(range(n_prefill, len(workers))),
        outage_time=_ints(o[0] for o in outages), outage_up=_ints(o[1] for o in outages),
        outage_worker=_ints(o[2] for o in outages), n_links=max(1, len(plant.ways.resources)), block=spec.block_tokens,
        hash_tokens=traffic.hash_tokens if reuse else 0, by_blocks=int(spec.extent == "blocks"),
        share=col.FAIR if spec.share == "fair" else col.QUEUE, pull=int(spec.start == "pull"),
        layers=plant.model.n_layers if spec.by == "layer" else 0, route_prefill=ROUTES[spec.route_prefill],
        route_decode=ROUTES[spec.route_decode], bent=int(plant.is_bent), **_hold_arrays(plant),
        **_way_arrays(plant, names),
    )  # fmt: skip


def _ints(values: Any) -> Any:
    import numpy as np

    return np.array(list(values), np.int64)


def _hold_arrays(plant: Plant) -> dict[str, Any]:
    """Bytes of a sequence on each worker, by window."""
    import numpy as np

    windows = sorted({window for worker in plant.workers for window, _ in worker.hold.windows})
    each = []
    for worker in plant.workers:
        held = dict(worker.hold.windows)
        each.append([worker.hold.each, *(held.get(window, 0) for window in windows)])
    return {
        "hold_fixed": _ints(worker.hold.fixed for worker in plant.workers), "hold_each": np.array(each, np.int64),
        "hold_windows": _ints(windows),
    }  # fmt: skip


def _outages(spec: Spec, worker_of: dict[str, int]) -> list[tuple[int, int, int]]:
    """(time, 1 where it is back, worker), sorted. A worker is down while any of its devices is."""
    down: dict[int, int] = {}
    changes = [(outage.at, 0, worker_of[outage.device]) for outage in spec.outages]
    changes += [(outage.back, 1, worker_of[outage.device]) for outage in spec.outages if outage.back is not None]
    out = []
    for time, up, worker in sorted(changes):
        before = down.get(worker, 0)
        down[worker] = before - 1 if up else before + 1
        if not before or not down[worker]:
            out.append((time, up, worker))
    return out


def _way_arrays(plant: Plant, names: dict[str, int]) -> dict[str, Any]:
    import numpy as np

    ways, rates = plant.ways, plant.spec.rates
    most = min(plant.model.seq_len, MAX_TOKENS)
    if plant.spec.by == "layer" and any(len(legs) > 1 for legs in ways.ways):
        words = "by: layer needs ways of one copy; what is staged over hosts, or for several stages, goes whole"
        raise DescriptionError([spec_fault(plant.spec, "handoff", words)])
    pair = np.full((len(names), len(names)), -1, np.int64)
    for (p, d), way in ways.pair.items():
        pair[names[p], names[d]] = way
    legs = [leg for way in ways.ways for leg in way]
    # Ways that differ in their ends only share the figures of their legs.
    alike = {id(leg.time): leg for leg in legs}
    figures = {key: (leg_units(leg, most), ratios(leg, rates)) for key, leg in alike.items()}
    of_legs = [figures[id(leg.time)] for leg in legs]
    q, times = [found[0][0] for found in of_legs], [found[0][1] for found in of_legs]
    knots = sorted({knot for time in times for knot, _ in time.bends})
    bends = [[dict(time.bends).get(knot, 0) for knot in knots] for time in times]
    chunks = sorted({(knot, chunk) for time in times for knot, chunk, _ in time.steps})
    steps = [[sum(v for *at, v in time.steps if tuple(at) == one) for one in chunks] for time in times]
    return {
        "pair": pair, "way_at": _ints(np.cumsum([0, *(len(way) for way in ways.ways)])),
        "leg_q": _ints(q), "leg_fixed": _ints(time.fixed for time in times),
        "leg_each": _ints(time.each for time in times), "knots": _ints(knots),
        "leg_bends": np.array(bends, np.int64).reshape(len(legs), len(knots)),
        "leg_steps": np.array(steps, np.int64).reshape(len(legs), len(chunks)),
        "step_knot": _ints(knot for knot, _ in chunks), "step_chunk": _ints(chunk for _, chunk in chunks),
        "link_at": _ints(np.cumsum([0, *(len(leg.links) for leg in legs)])),
        "leg_links": _ints(ways.number(link) for leg in legs for link in leg.links),
        "leg_ratio": _ints(ratio for found in of_legs for ratio in found[1]),
    }  # fmt: skip
