"""A simulation's workers, admitted by the planner's one admission, and the ways between them.

How much cache a worker has is asked of `planner.admit`: the longest cache for `max_seqs` sequences beside weights,
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
from planner.caches import held_parts
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
from scenarios.simulation.curves import Knots
from scenarios.simulation.memory import Hold, worker_hold
from scenarios.simulation.spec import Pool, Spec
from scenarios.simulation.traffic import MAX_TOKENS
from scenarios.simulation.ways import Ways, all_ways, links_within


@dataclass(frozen=True, kw_only=True, slots=True)
class Worker:
    """One worker: its devices, role, step costs, and its cache: `blocks`, which are bytes where `hold` is not even.

    `admission` is the verdict that they follow from.
    """

    devices: tuple[Device, ...]
    role: int
    pool: Pool
    blocks: int
    hold: Hold
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

    @property
    def is_bent(self) -> bool:
        """Whether windows or states are kept, so that memory is counted in bytes."""
        return any(not worker.hold.is_even for worker in self.workers)


def build(spec: Spec, fleet: Fleet, model: Model) -> Plant:
    """The admitted workers and their ways. `refused` holds the first verdict that is not yes, with its reasons.

    Raises DescriptionError for devices that are not there, InconclusiveError where a figure is unknown.
    """
    check_devices(spec, fleet)
    if model.unknown:
        raise InconclusiveError(f"{model.name}: {'; '.join(model.unknown)}")
    if words := simulated_unknown(model):
        raise InconclusiveError(f"{model.name}: {'; '.join(words)}")
    if spec.by == "layer" and len(dict.fromkeys(model.caches)) > 1:
        kinds = ", ".join(dict.fromkeys(layer.kind for layer in model.caches))
        raise InconclusiveError(
            f"{model.name}: by: layer is of equal layers, and these ({kinds}) are not: not simulated; use by: whole"
        )
    degrees = worker_faults(model, placed(spec, spec.prefill.workers[0], spec.decode.workers[0]))
    if faults := [spec_fault(spec, phase.split("_")[0], f"{phase}: {words}") for phase, words in degrees]:
        raise DescriptionError(faults)
    workers: list[Worker] = []
    for role, pool in ((col.PREFILL, spec.prefill), (col.DECODE, spec.decode)):
        found = _workers(spec, fleet, model, role, pool)
        if isinstance(found, Admission):
            return Plant(spec=spec, fleet=fleet, model=model, workers=(), ways=Ways(), refused=found)
        workers += found
    ways = all_ways(fleet, spec.prefill.workers, spec.decode.workers, _asker(spec, fleet, model), spec.rates,
                    knots_of(spec, fleet, model))  # fmt: skip
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
            each, admission = admitted
            hold = _hold(spec, model, role, name)
            room = each if hold.is_even else hold.at(each * spec.block_tokens)
            known[kind] = Worker(
                devices=devices, role=role, pool=pool, blocks=room * pool.max_seqs, hold=hold, costs=costs,
                admission=admission,
            )  # fmt: skip
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
                faults.append(spec_fault(spec, phase, f"{name!r} is no device of fleet {fleet.name}{hint}"))
            elif name in both and phase == "decode":
                faults.append(
                    spec_fault(spec, phase, f"{name} serves prefill already; a worker has a device of its own")
                )
    faults += [
        spec_fault(spec, "outages", f"{outage.device} is in no pool")
        for outage in spec.outages
        if outage.device not in (*spec.prefill.devices, *spec.decode.devices)
    ]
    if faults:
        raise DescriptionError(faults)


def spec_fault(spec: Spec, name: str, message: str) -> Fault:
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
        engine=spec.engine,
    )  # fmt: skip
    return Ask(
        fleet=fleet, model=model, request=request, placement=_placed(spec, role, name), utilization=spec.utilization,
        pricing=Pricing(rates=spec.rates),
    )  # fmt: skip


def _blocks(spec: Spec, fleet: Fleet, model: Model, role: int, name: str) -> tuple[int, Admission] | Admission:
    """(blocks of the longest cache of `max_seqs` sequences that this worker admits, the verdict), or the verdict where
    none is.
    """
    block = spec.block_tokens
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
    return low, best


def _hold(spec: Spec, model: Model, role: int, name: str) -> Hold:
    """What one sequence takes on a worker, of all its ranks."""
    block, placement = spec.block_tokens, _placed(spec, role, name)
    ranks = ranks_of(model, placement, "prefill" if role == col.PREFILL else "decode")
    workload = resolve(handoff_request(spec, 1), model, spec.source)
    return worker_hold(model, ranks, workload, -(-model.seq_len // block) * block)


def knots_of(spec: Spec, fleet: Fleet, model: Model) -> Knots:
    """Units of transfer from which on windows are full, and the most units of a prompt.

    Where all grows evenly, and no pinned pool is stated that might cut a long prompt in chunks, few units tell all.
    """
    workload = resolve(handoff_request(spec, 1), model, spec.source)
    unit = spec.block_tokens if spec.extent == "blocks" else 1
    longest = min(model.seq_len, MAX_TOKENS) - 1
    most = -(-longest // unit)
    windows = {part.window for part in held_parts(model, workload) if part.window is not None}
    found = sorted({-(-window // unit) for window in windows if window < longest})
    bounded = bool(found) or any(part.is_state for part in held_parts(model, workload))
    pools = any(host.pinned_pool.value is not None for host in fleet.hosts)
    return Knots(tuple(found), most) if bounded or pools else Knots(longest=min(3, most))


def _predicted(spec: Spec, fleet: Fleet, model: Model, placement: Placement, request: Request) -> Prediction:
    return predict(fleet, model, resolve(request, model, spec.source), placement)


def handoff_request(spec: Spec, prompt: int, new_tokens: int = 2) -> Request:
    """What the planner is asked for one request's handoff."""
    extent = f"blocks:{spec.block_tokens}" if spec.extent == "blocks" else "filled"
    return Request(
        prompt_tokens=prompt, new_tokens=new_tokens, kv_dtype=spec.kv_dtype, weights_dtype=spec.weights_dtype,
        prefill_chunk=max(1, min(prompt, spec.prefill.max_tokens)), kv_extent=extent, engine=spec.engine,
    )  # fmt: skip


def _asker(spec: Spec, fleet: Fleet, model: Model) -> Any:
    def ask(p: str, d: str, units: int) -> Prediction:
        # The last block of the model's positions need not be whole, and moves whole all the same.
        prompt = min(units * (spec.block_tokens if spec.extent == "blocks" else 1), model.seq_len - 1)
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
