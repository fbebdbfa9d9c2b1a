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
from planner.machine import machine_graph
from planner.placement_time import Pricing, parts_of_phase
from planner.predict import Prediction, predict
from planner.request import Request, resolve
from planner.roofline import Used
from planner.rows import Row
from planner.workers import Rank, rank_model, ranks_of, worker_faults
from scenarios.simulation import columns as col
from scenarios.simulation.costs import (
    StepCosts,
    Values,
    affine,
    copy_costs,
    simulated_unknown,
    stage_values,
    step_costs,
)  # fmt: skip
from scenarios.simulation.spec import Pool, Spec
from scenarios.simulation.traffic import MAX_TOKENS, Traffic
from scenarios.simulation.ways import Ways, all_ways, leg_units, links_within, ratios

ROUTES = {"round-robin": col.ROUND_ROBIN, "least-loaded": col.LEAST_LOADED, "same-domain": col.SAME_DOMAIN,
          "prefix-aware": col.PREFIX_AWARE}  # fmt: skip
MOST_PREFIX_CELLS = 2**27


@dataclass(frozen=True, kw_only=True, slots=True)
class Worker:
    """One worker: its devices, role, blocks and step costs. `admission` is the verdict that its blocks follow from."""

    devices: tuple[Device, ...]
    role: int
    pool: Pool
    blocks: int
    costs: StepCosts
    admission: Admission

    @property
    def name(self) -> str:
        """Its devices joined by commas."""
        return ",".join(device.id for device in self.devices)


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
        return [worker.name for worker in self.workers]


def build(spec: Spec, fleet: Fleet, model: Model) -> Plant:
    """The admitted workers and their ways. `refused` holds the first verdict that is not yes, with its reasons.

    Raises DescriptionError for devices that are not there, InconclusiveError where a figure is unknown.
    """
    check_devices(spec, fleet)
    if model.unknown:
        raise InconclusiveError(f"{model.name}: {'; '.join(model.unknown)}")
    if words := simulated_unknown(model):
        raise InconclusiveError(f"{model.name}: {'; '.join(words)}")
    degrees = worker_faults(model, placed(spec, spec.prefill.workers[0], spec.decode.workers[0]))
    if faults := [_fault(spec, phase.split("_")[0], f"{phase}: {words}") for phase, words in degrees]:
        raise DescriptionError(faults)
    workers: list[Worker] = []
    for role, pool in ((col.PREFILL, spec.prefill), (col.DECODE, spec.decode)):
        found = _workers(spec, fleet, model, role, pool)
        if isinstance(found, Admission):
            return Plant(spec=spec, fleet=fleet, model=model, workers=(), ways=Ways(), refused=found)
        workers += found
    ways = all_ways(fleet, spec.prefill.workers, spec.decode.workers, _asker(spec, fleet, model), spec.rates)
    return Plant(spec=spec, fleet=fleet, model=model, workers=tuple(workers), ways=ways)


def _workers(spec: Spec, fleet: Fleet, model: Model, role: int, pool: Pool) -> list[Worker] | Admission:
    """The workers of a pool, or the first verdict that is not yes. Workers of equal devices with equal links among
    them are asked for once.
    """
    from dataclasses import replace

    home, by_name = _home_links(fleet), {device.id: device for device in fleet.devices}
    within = links_within(fleet, pool.workers)
    known: dict[Any, Worker] = {}
    out = []
    for name in pool.workers:
        devices = tuple(by_name[device] for device in name.split(","))
        equal = tuple((d.sku, d.memories, d.runtime, d.compute, d.in_use, home.get(d.id, ())) for d in devices)
        kind = (equal, within[name])
        if kind not in known:
            admitted = _blocks(spec, fleet, model, role, name)
            if isinstance(admitted, Admission):
                return admitted
            costs = _costs(spec, fleet, model, devices, role)
            known[kind] = Worker(
                devices=devices, role=role, pool=pool, blocks=admitted[0], costs=costs, admission=admitted[1]
            )
        out.append(replace(known[kind], devices=devices))
    return out


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


def _placed(spec: Spec, role: int, name: str) -> Placement:
    """A worker, and the first one of the other phase."""
    if role == col.PREFILL:
        return placed(spec, name, spec.decode.workers[0])
    return placed(spec, spec.prefill.workers[0], name)


def placed(spec: Spec, prefill: str, decode: str) -> Placement:
    """Two workers as the planner is asked for them."""
    pools = (spec.prefill, spec.decode)
    return Placement(
        prefill=prefill, decode=decode, tp=(pools[0].tp, pools[1].tp), pp=(pools[0].pp, pools[1].pp)
    )  # fmt: skip


def _ask(spec: Spec, fleet: Fleet, model: Model, role: int, name: str, positions: int) -> Ask:
    """`max_seqs` sequences of so many positions on one worker, `max_tokens` rows of activations where it prefills."""
    pool = spec.prefill if role == col.PREFILL else spec.decode
    chunk = -(-pool.max_tokens // pool.max_seqs)
    request = Request(
        prompt_tokens=1, new_tokens=1, positions=positions, batch=pool.max_seqs, kv_dtype=spec.kv_dtype,
        weights_dtype=spec.weights_dtype, prefill_chunk=chunk, kv_extent=f"blocks:{spec.block_tokens}",
    )  # fmt: skip
    return Ask(
        fleet=fleet, model=model, request=request, placement=_placed(spec, role, name), utilization=spec.utilization,
        pricing=Pricing(rates=spec.rates),
    )  # fmt: skip


def _blocks(spec: Spec, fleet: Fleet, model: Model, role: int, name: str) -> tuple[int, Admission] | Admission:
    """(KV blocks, the verdict at the longest cache that this worker admits), or the verdict where none is."""
    block, seqs = spec.block_tokens, (spec.prefill if role == col.PREFILL else spec.decode).max_seqs
    own = name.split(",")

    def verdict(blocks: int) -> Admission:
        return admit(_ask(spec, fleet, model, role, name, min(blocks * block, model.seq_len)))

    def fits(admission: Admission) -> bool:
        return not any(r.device in own and r.severity != "warning" for r in admission.reasons)

    low, high = 1, max(1, model.seq_len // block)
    best = verdict(low)
    if not fits(best) or any(reason.device is None and reason.severity != "warning" for reason in best.reasons):
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
        return _predicted(spec, fleet, model, placed(spec, p, d), handoff_request(spec, prompt))

    return ask


def _rows(prediction: Prediction, phase: str, tensor: str) -> list[Row]:
    return [row for row in prediction.rows if (row.phase, row.tensor) == (phase, tensor)]


def _of_ids(spec: Spec, role: int, ids: int) -> Request:
    """So many ids in one copy and one call: a prompt in one chunk; in decode a batch."""
    prompt, batch = (ids, 1) if role == col.PREFILL else (1, ids)
    return Request(
        prompt_tokens=prompt, new_tokens=2, batch=batch, prefill_chunk=ids, kv_dtype=spec.kv_dtype,
        weights_dtype=spec.weights_dtype,
    )  # fmt: skip


def _costs(spec: Spec, fleet: Fleet, model: Model, devices: tuple[Device, ...], role: int) -> StepCosts:
    pool, phase = (spec.prefill, "prefill") if role == col.PREFILL else (spec.decode, "decode")
    placement = _placed(spec, role, ",".join(device.id for device in devices))
    asked = [resolve(_of_ids(spec, role, ids), model, spec.source) for ids in (1, 2, 3)]
    told = [predict(fleet, model, workload, placement) for workload in asked[:2]]
    # Two sequences give two tokens at once; a prompt gives one, whatever its length.
    both = Request(prompt_tokens=1, new_tokens=2, batch=2, kv_dtype=spec.kv_dtype, weights_dtype=spec.weights_dtype)
    two = told[1] if role == col.DECODE else _predicted(spec, fleet, model, placement, both)
    up = copy_costs(_rows(told[0], phase, "tokens"), _rows(told[1], phase, "tokens"), spec.rates)
    down = copy_costs(_rows(told[0], phase, "next_token"), _rows(two, phase, "next_token"), spec.rates)
    pricing, machine = Pricing(rates=spec.rates), machine_graph(fleet)
    sums = affine(
        [parts_of_phase(machine, model, workload, placement, phase, (), pricing).sums for workload in asked], 1
    )
    once = {
        "FIXED": Fraction(spec.step_overhead) + sums[0], "EACH": sums[1], "UP0": up[0], "UP1": up[1], "DN0": down[0],
        "DN1": down[1],
    }  # fmt: skip
    if pool.pp > 1:
        # A sampled id stays on one device; the first of several stages gets each from the host.
        once |= {"FIXED": once["FIXED"] + up[0], "EACH": once["EACH"] + up[1], "UP0": Fraction(0), "UP1": Fraction(0)}
    longest = min(model.seq_len, MAX_TOKENS)
    largest = {
        "tokens": pool.max_tokens + pool.max_seqs, "logits": pool.max_seqs, "pairs": pool.max_tokens * longest,
        "positions": pool.max_seqs * longest,
    }  # fmt: skip
    used: dict[Any, Used] = {}
    dtypes = (asked[0].weights_dtype, asked[0].kv_dtype)
    return step_costs(_stages(model, devices, ranks_of(model, placement, phase), dtypes, pricing, used), once, largest,
                      used)  # fmt: skip


def _stages(
    model: Model, devices: tuple[Device, ...], ranks: tuple[Rank, ...], dtypes: tuple[str, str], pricing: Pricing,
    used: dict[Any, Used],
) -> list[Values]:  # fmt: skip
    """The coefficients of each stage, whose ranks go side by side: those of the rank that is the slowest in every term.

    Raises InconclusiveError in words where none is.
    """
    stages: dict[int, list[Values]] = {}
    for device, rank in zip(devices, ranks, strict=True):
        held = model if len(ranks) == 1 else rank_model(model, rank.cut)
        stages.setdefault(rank.stage, []).append(stage_values(device, held, model, dtypes, pricing, used))
    out = []
    for number, held_by in stages.items():
        most = {name: max(values[name] for values in held_by) for name in held_by[0]}
        if most not in held_by:
            raise InconclusiveError(
                f"stage {number} of {','.join(d.id for d in devices)}: none of its ranks is the slowest in every part"
                " of a step, which is not simulated; use equal cards"
            )
        out.append(most)
    return out


def config_of(plant: Plant, traffic: Traffic) -> col.Config:
    """The event loop's arrays. Raises InconclusiveError where prefix blocks and workers are more than memory holds."""
    import numpy as np

    spec, workers = plant.spec, plant.workers
    n_prefill = len(spec.prefill.workers)
    reuse = spec.prefix_reuse and traffic.hash_tokens > 0
    if reuse and traffic.hash_tokens % spec.block_tokens:
        raise DescriptionError([_fault(
            spec, "block_tokens", f"{spec.block_tokens} does not divide the trace's blocks of {traffic.hash_tokens}"
        )])  # fmt: skip
    hashes = traffic.hashes if reuse else np.zeros(0, np.int64)
    if len(hashes) and len(workers) * (int(hashes.max()) + 1) > MOST_PREFIX_CELLS:
        raise InconclusiveError("too many prefix blocks for so many workers: leave prefix reuse off")
    names = {name: i for i, name in enumerate(plant.device_of)}
    at_home = [tuple(dict.fromkeys(device.host for device in worker.devices)) for worker in workers]
    hosts = {home: i for i, home in enumerate(dict.fromkeys(at_home))}
    outages = _outages(spec, {device.id: i for i, worker in enumerate(workers) for device in worker.devices})
    stages = max(len(worker.costs.stages) for worker in workers)
    return col.Config(
        arrival=traffic.arrival, prompt=traffic.prompt, out=traffic.out, hashes=hashes,
        hash_at=traffic.hash_at if reuse else np.zeros(len(traffic.arrival) + 1, np.int64),
        role=_ints(worker.role for worker in workers), q=_ints(worker.costs.q for worker in workers),
        cost=np.array([worker.costs.rows(stages) for worker in workers], np.int64),
        blocks=_ints(worker.blocks for worker in workers), max_seqs=_ints(worker.pool.max_seqs for worker in workers),
        budget=_ints(worker.pool.max_tokens for worker in workers),
        domain=_ints(hosts[home] for home in at_home),
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
