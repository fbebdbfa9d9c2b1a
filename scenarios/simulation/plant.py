"""A simulation's workers, admitted by the planner's one admission, and the event loop's arrays.

How many KV blocks a worker has is asked of `planner.admit`: the longest cache for `max_seqs` sequences beside weights,
activations and runtime that its device admits. Step times, handoff bytes and handoff times are the planner's as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from fleet.errors import DescriptionError, Fault, InconclusiveError
from fleet.machine import Device, Fleet
from fleet.model import Model
from fleet.placement import Placement
from planner.admit import Admission, Ask, admit
from planner.placement_time import Pricing
from planner.predict import Prediction, predict
from planner.request import Request, resolve
from planner.rows import Row
from scenarios.simulation import columns as col
from scenarios.simulation.costs import StepCosts, copy_costs, simulated_unknown, step_costs
from scenarios.simulation.spec import Pool, Spec
from scenarios.simulation.traffic import MAX_TOKENS, Traffic
from scenarios.simulation.ways import Ways, all_ways, leg_units, ratios

ROUTES = {"round-robin": col.ROUND_ROBIN, "least-loaded": col.LEAST_LOADED, "same-domain": col.SAME_DOMAIN,
          "prefix-aware": col.PREFIX_AWARE}  # fmt: skip
MOST_PREFIX_CELLS = 2**27


@dataclass(frozen=True, kw_only=True, slots=True)
class Worker:
    """One worker: its device, role, blocks and step costs. `admission` is the verdict that its blocks follow from."""

    device: Device
    role: int
    pool: Pool
    blocks: int
    costs: StepCosts
    admission: Admission


@dataclass(frozen=True, kw_only=True, slots=True)
class Plant:
    """All that a run needs and a result names. Workers are in the order of their numbers, prefill first."""

    spec: Spec
    fleet: Fleet
    model: Model
    workers: tuple[Worker, ...]
    ways: Ways
    refused: Admission | None = None

    @property
    def device_of(self) -> list[str]:
        return [worker.device.id for worker in self.workers]


def build(spec: Spec, fleet: Fleet, model: Model) -> Plant:
    """The admitted workers and their ways. `refused` holds the first verdict that is not yes, with its reasons.

    Raises DescriptionError for devices that are not there, InconclusiveError where a figure is unknown.
    """
    check_devices(spec, fleet)
    if model.unknown:
        raise InconclusiveError(f"{model.name}: {'; '.join(model.unknown)}")
    if words := simulated_unknown(model):
        raise InconclusiveError(f"{model.name}: {'; '.join(words)}")
    workers: list[Worker] = []
    home = _home_links(fleet)
    for role, pool, other in ((col.PREFILL, spec.prefill, spec.decode), (col.DECODE, spec.decode, spec.prefill)):
        known: dict[Any, Worker] = {}
        for name in pool.devices:
            device = fleet.device(name)
            assert device is not None
            kind = (device.sku, device.memories, device.runtime, device.compute, device.in_use, home.get(name, ()))
            if kind not in known:
                admitted = _blocks(spec, fleet, model, role, name, other.devices[0])
                if isinstance(admitted, Admission):
                    return Plant(spec=spec, fleet=fleet, model=model, workers=(), ways=Ways(), refused=admitted)
                costs = _costs(spec, fleet, model, device, role, other.devices[0])
                known[kind] = Worker(
                    device=device, role=role, pool=pool, blocks=admitted[0], costs=costs, admission=admitted[1]
                )
            like = known[kind]
            workers.append(Worker(
                device=device, role=role, pool=pool, blocks=like.blocks, costs=like.costs, admission=like.admission
            ))  # fmt: skip
    ways = all_ways(fleet, spec.prefill.devices, spec.decode.devices, _asker(spec, fleet, model), spec.rates)
    return Plant(spec=spec, fleet=fleet, model=model, workers=tuple(workers), ways=ways)


def _home_links(fleet: Fleet) -> dict[str, tuple[str, ...]]:
    """What the links between each device and its host are, whatever the ends are called."""
    hosts = {device.id: device.host for device in fleet.devices}
    out: dict[str, list[str]] = {}
    for link in fleet.links:
        for name, other, way in ((link.src, link.dst, "down"), (link.dst, link.src, "up")):
            if hosts.get(name) == other:
                out.setdefault(name, []).append(f"{way} {link.kind} {link.bandwidth} {link.latency} {link.duplex}")
    return {name: tuple(figures) for name, figures in out.items()}


def check_devices(spec: Spec, fleet: Fleet) -> None:
    """Raises DescriptionError where pools or outages name a device that is not there, or one for both phases."""
    import difflib

    known = {device.id for device in fleet.devices}
    faults = []
    both = set(spec.prefill.devices) & set(spec.decode.devices)
    for phase, pool in (("prefill", spec.prefill), ("decode", spec.decode)):
        for name in pool.devices:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                faults.append(_fault(spec, phase, f"{name!r} is no device of fleet {fleet.name}{hint}"))
            elif name in both and phase == "decode":
                faults.append(_fault(spec, phase, f"{name} serves prefill already; a worker has a device of its own"))
    faults += [
        _fault(spec, "outages", f"{outage.device} is in no pool")
        for outage in spec.outages
        if outage.device not in (*spec.prefill.devices, *spec.decode.devices)
    ]
    if faults:
        raise DescriptionError(faults)


def _fault(spec: Spec, name: str, message: str) -> Fault:
    line, column = spec.places.get(name, (0, 0))
    return Fault(source=spec.source, field=name, message=message, line=line, column=column)


def _placed(role: int, device: str, other: str) -> Placement:
    return Placement(prefill=device, decode=other) if role == col.PREFILL else Placement(prefill=other, decode=device)


def _ask(spec: Spec, fleet: Fleet, model: Model, role: int, device: str, other: str, positions: int) -> Ask:
    """`max_seqs` sequences of so many positions on one worker, `max_tokens` rows of activations where it prefills."""
    pool = spec.prefill if role == col.PREFILL else spec.decode
    chunk = -(-pool.max_tokens // pool.max_seqs)
    request = Request(
        prompt_tokens=1, new_tokens=1, positions=positions, batch=pool.max_seqs, kv_dtype=spec.kv_dtype,
        weights_dtype=spec.weights_dtype, prefill_chunk=chunk, kv_extent=f"blocks:{spec.block_tokens}",
    )  # fmt: skip
    return Ask(
        fleet=fleet, model=model, request=request, placement=_placed(role, device, other),
        utilization=spec.utilization, pricing=Pricing(rates=spec.rates),
    )  # fmt: skip


def _blocks(
    spec: Spec, fleet: Fleet, model: Model, role: int, device: str, other: str
) -> tuple[int, Admission] | Admission:
    """(KV blocks, the verdict at the longest cache that this device admits), or the verdict where none is."""
    block, seqs = spec.block_tokens, (spec.prefill if role == col.PREFILL else spec.decode).max_seqs

    def verdict(blocks: int) -> Admission:
        return admit(_ask(spec, fleet, model, role, device, other, min(blocks * block, model.seq_len)))

    def fits(admission: Admission) -> bool:
        return not any(r.device == device and r.severity != "warning" for r in admission.reasons)

    low, high = 1, max(1, model.seq_len // block)
    best = verdict(low)
    if not fits(best):
        return best
    if any(reason.edge is not None and reason.severity != "warning" for reason in best.reasons):
        return best
    while low < high:
        middle = (low + high + 1) // 2
        found = verdict(middle)
        if fits(found):
            low, best = middle, found
        else:
            high = middle - 1
    return low * seqs, best


def _predicted(spec: Spec, fleet: Fleet, model: Model, placement: Placement, request: Request) -> Prediction:
    return predict(fleet, model, resolve(request, model, spec.source), placement)


def handoff_request(spec: Spec, prompt: int, new_tokens: int = 2) -> Request:
    """What the planner is asked for one request's handoff."""
    extent = f"blocks:{spec.block_tokens}" if spec.extent == "blocks" else "filled"
    return Request(
        prompt_tokens=prompt, new_tokens=new_tokens, kv_dtype=spec.kv_dtype, weights_dtype=spec.weights_dtype,
        prefill_chunk=max(1, min(prompt, spec.prefill.max_tokens)), kv_extent=extent,
    )  # fmt: skip


def _asker(spec: Spec, fleet: Fleet, model: Model) -> Any:
    def ask(p: str, d: str, units: int) -> Prediction:
        prompt = units * (spec.block_tokens if spec.extent == "blocks" else 1)
        return _predicted(spec, fleet, model, Placement(prefill=p, decode=d), handoff_request(spec, prompt))

    return ask


def _row(prediction: Prediction, phase: str, tensor: str) -> Row | None:
    return next((row for row in prediction.rows if (row.phase, row.tensor) == (phase, tensor)), None)


def _costs(spec: Spec, fleet: Fleet, model: Model, device: Device, role: int, other: str) -> StepCosts:
    pool = spec.prefill if role == col.PREFILL else spec.decode
    phase = "prefill" if role == col.PREFILL else "decode"
    placement = _placed(role, device.id, other)
    by_ids = []
    for ids in (1, 2):
        # Two ids in one copy: a prompt of two in one chunk; in decode a batch of two.
        batch = ids if role == col.DECODE else 1
        request = Request(
            prompt_tokens=ids if role == col.PREFILL else 1, new_tokens=2, batch=batch, prefill_chunk=2,
            kv_dtype=spec.kv_dtype, weights_dtype=spec.weights_dtype,
        )  # fmt: skip
        by_ids.append(_predicted(spec, fleet, model, placement, request))
    up = copy_costs(_row(by_ids[0], phase, "tokens"), _row(by_ids[1], phase, "tokens"))
    both = Request(prompt_tokens=1, new_tokens=2, batch=2, kv_dtype=spec.kv_dtype, weights_dtype=spec.weights_dtype)
    two = by_ids[1] if role == col.DECODE else _predicted(spec, fleet, model, placement, both)
    down = copy_costs(_row(by_ids[0], phase, "next_token"), _row(two, phase, "next_token"))
    copies = {"UP0": up[0], "UP1": up[1], "DN0": down[0], "DN1": down[1]}
    longest = min(model.seq_len, MAX_TOKENS)
    largest = {
        "tokens": pool.max_tokens + pool.max_seqs, "logits": pool.max_seqs, "pairs": pool.max_tokens * longest,
        "positions": pool.max_seqs * longest,
    }  # fmt: skip
    workload = resolve(both, model, spec.source)
    return step_costs(
        device, model, (workload.weights_dtype, workload.kv_dtype), copies, Fraction(spec.step_overhead), largest,
        Pricing(rates=spec.rates),
    )  # fmt: skip


def config_of(plant: Plant, traffic: Traffic) -> col.Config:
    """The event loop's arrays. Raises InconclusiveError where prefix blocks and workers are more than memory holds."""
    import numpy as np

    spec, workers = plant.spec, plant.workers
    n_prefill = len(spec.prefill.devices)
    reuse = spec.prefix_reuse and traffic.hash_tokens > 0
    if reuse and traffic.hash_tokens % spec.block_tokens:
        raise DescriptionError([_fault(
            spec, "block_tokens", f"{spec.block_tokens} does not divide the trace's blocks of {traffic.hash_tokens}"
        )])  # fmt: skip
    hashes = traffic.hashes if reuse else np.zeros(0, np.int64)
    if len(hashes) and len(workers) * (int(hashes.max()) + 1) > MOST_PREFIX_CELLS:
        raise InconclusiveError("too many prefix blocks for so many workers: leave prefix reuse off")
    names = {name: i for i, name in enumerate(plant.device_of)}
    hosts = {name: i for i, name in enumerate(dict.fromkeys(worker.device.host for worker in workers))}
    outages = sorted(_outages(spec, names))
    return col.Config(
        arrival=traffic.arrival, prompt=traffic.prompt, out=traffic.out, hashes=hashes,
        hash_at=traffic.hash_at if reuse else np.zeros(len(traffic.arrival) + 1, np.int64),
        role=_ints(worker.role for worker in workers), q=_ints(worker.costs.q for worker in workers),
        cost=np.array([worker.costs.row() for worker in workers], np.int64),
        blocks=_ints(worker.blocks for worker in workers), max_seqs=_ints(worker.pool.max_seqs for worker in workers),
        budget=_ints(worker.pool.max_tokens for worker in workers),
        domain=_ints(hosts[worker.device.host] for worker in workers),
        prefill_pool=_ints(range(n_prefill)), decode_pool=_ints(range(n_prefill, len(workers))),
        outage_time=_ints(o[0] for o in outages), outage_up=_ints(o[1] for o in outages),
        outage_worker=_ints(o[2] for o in outages), n_links=max(1, len(plant.ways.resources)), block=spec.block_tokens,
        hash_tokens=traffic.hash_tokens if reuse else 0, by_blocks=int(spec.extent == "blocks"),
        share=col.FAIR if spec.share == "fair" else col.QUEUE, pull=int(spec.start == "pull"),
        layers=plant.model.n_layers if spec.by == "layer" else 0, route_prefill=ROUTES[spec.route_prefill],
        route_decode=ROUTES[spec.route_decode], **_way_arrays(plant, names),
    )  # fmt: skip


def _ints(values: Any) -> Any:
    import numpy as np

    return np.array(list(values), np.int64)


def _outages(spec: Spec, names: dict[str, int]) -> list[tuple[int, int, int]]:
    out = [(outage.at, 0, names[outage.device]) for outage in spec.outages]
    return out + [(outage.back, 1, names[outage.device]) for outage in spec.outages if outage.back is not None]


def _way_arrays(plant: Plant, names: dict[str, int]) -> dict[str, Any]:
    import numpy as np

    ways, rates = plant.ways, plant.spec.rates
    most = MAX_TOKENS
    if plant.spec.by == "layer" and any(len(legs) > 1 for legs in ways.ways):
        words = "by: layer needs ways of one copy; a way staged over host memory is handed over whole"
        raise DescriptionError([_fault(plant.spec, "handoff", words)])
    pair = np.full((len(names), len(names)), -1, np.int64)
    for (p, d), way in ways.pair.items():
        pair[names[p], names[d]] = way
    legs = [leg for way in ways.ways for leg in way]
    # Ways that differ in their ends only share the figures of their legs.
    alike = {(id(leg.fixed), id(leg.each)): leg for leg in legs}
    figures = {key: (leg_units(leg, most), ratios(leg, rates)) for key, leg in alike.items()}
    of_legs = [figures[id(leg.fixed), id(leg.each)] for leg in legs]
    units = [found[0] for found in of_legs]
    return {
        "pair": pair, "way_at": _ints(np.cumsum([0, *(len(way) for way in ways.ways)])),
        "leg_q": _ints(u[0] for u in units), "leg_fixed": _ints(u[1] for u in units),
        "leg_each": _ints(u[2] for u in units), "link_at": _ints(np.cumsum([0, *(len(leg.links) for leg in legs)])),
        "leg_links": _ints(ways.number(link) for leg in legs for link in leg.links),
        "leg_ratio": _ints(ratio for found in of_legs for ratio in found[1]),
    }  # fmt: skip
