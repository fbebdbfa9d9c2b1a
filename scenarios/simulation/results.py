"""What a run says: latencies, goodput, bytes by edge, queues and memory, as `kvwaybill/simulation/1`.

Percentiles are those of the nearest rank (the smallest value that a share p of all does not exceed), in whole
picoseconds. Every rate names its denominator. A request that was refused or never ended meets no SLO.
"""

from __future__ import annotations

import hashlib
from typing import Any

from scenarios.simulation import columns as col
from scenarios.simulation.engine import Outcome
from scenarios.simulation.moved import edges, handoffs
from scenarios.simulation.over_time import series
from scenarios.simulation.plant import Plant
from scenarios.simulation.traffic import PICOSECONDS, Traffic

Document = dict[str, Any]
SHARES = (50, 90, 99)

NOT_MODELLED = (
    "Step times are the planner's roofline with its shares of stated rates: unscored until they are calibrated.",
    "A worker of several devices makes one step at a time, through all its stages: stages do not overlap.",
    "The tokens of a step spread over as many routed experts as they can: the most bytes that a step can read.",
    "A prefill worker takes all blocks of a prompt when it admits it, and preempts nobody; decode workers preempt the"
    " request admitted last and compute its cache again.",
    "Prefixes are found again on prefill workers only; the handoff carries the whole prompt.",
    "Weights are resident before the first request; scheduler, tokenizer and network of the clients take no time.",
    "Handoffs share links with each other only, not with token ids, sums of ranks or other traffic.",
    "A handoff that a failure cuts short keeps its place in a link's queue; what it moved until then is not counted.",
    "Speculative decoding, KV offload to host memory, batched tokenizing and multi-step scheduling are not simulated.",
)


def summary(plant: Plant, traffic: Traffic, outcome: Outcome) -> Document:
    """The summary document. Times in seconds are floats of exact picoseconds."""
    r = outcome.requests
    done = r[:, col.ST] == col.FINISHED
    last = int(outcome.counters[col.LAST_TIME])
    times = latencies(traffic, outcome)
    inputs = _inputs(plant, traffic)
    return {
        "schema": "kvwaybill/simulation/1",
        "name": plant.spec.name,
        "inputs": inputs,
        "requests": _counts(traffic, outcome),
        "duration_s": last / PICOSECONDS,
        "latency": {name: _spread(values) for name, values in times.items()} | {"itl": _gap_spread(outcome.gaps)},
        "throughput": _throughput(plant, traffic, outcome, last),
        "goodput": _goodput(plant, traffic, outcome, times, last),
        "handoffs": {"count": len(outcome.moves), "lost": int(outcome.counters[col.LOST_MOVES]),
                     "bytes": sum(row["bytes"] for row in handoffs(plant, traffic, outcome))},
        "edges": edges(plant, traffic, outcome, last),
        "workers": _workers(plant, outcome, last),
        "queues": _queues(traffic, outcome, last),
        "series": series(plant, traffic, outcome, last),
        "mean_in_system": outcome.area / last if last else 0.0,
        "events": int(outcome.counters[col.EVENTS]),
        "unfinished": [] if bool(done.all()) else _unfinished(outcome),
        "limits": [*NOT_MODELLED, *_kept(plant), *_rounded(plant)],
    }  # fmt: skip


def _kept(plant: Plant) -> list[str]:
    words = "Layers with a window keep no more than it; an engine may keep more while a chunk of a prompt is computed."
    return [words] if any(worker.hold.windows for worker in plant.workers) else []


def _rounded(plant: Plant) -> list[str]:
    rounded = [worker.costs for worker in plant.workers if not worker.costs.exact]
    if not rounded:
        return []
    finest = min(costs.q for costs in rounded)
    return [f"Step times of {len(rounded)} workers are rounded to 1/{finest:,} ps: exact ones pass 64 bits."]


def _inputs(plant: Plant, traffic: Traffic) -> Document:
    spec = plant.spec
    digest = hashlib.sha256()
    for array in (traffic.arrival, traffic.prompt, traffic.out):
        digest.update(array.astype("<i8").tobytes())
    return {
        "fleet": {"name": plant.fleet.name, "digest": plant.fleet.digest},
        "model": {"name": plant.model.name, "digest": plant.model.digest},
        "traffic": {"source": traffic.source, "digest": digest.hexdigest()},
        "prefill": len(spec.prefill.workers), "decode": len(spec.decode.workers), "block_tokens": spec.block_tokens,
        "devices": {phase: {"count": len(pool.devices), "tp": pool.tp, "pp": pool.pp}
                    for phase, pool in (("prefill", spec.prefill), ("decode", spec.decode))},
        "routing": {"prefill": spec.route_prefill, "decode": spec.route_decode},
        "handoff": {"share": spec.share, "start": spec.start, "by": spec.by, "extent": spec.extent},
        **({} if spec.engine is None else {"engine": spec.engine}),
        "prefix_reuse": spec.prefix_reuse and traffic.hash_tokens > 0, "rates": spec.rates,
        "slo": {name: None if (v := getattr(spec.slo, name)) is None else v / PICOSECONDS
                for name in ("ttft", "tpot", "e2e")},
    }  # fmt: skip


def _counts(traffic: Traffic, outcome: Outcome) -> Document:
    r = outcome.requests
    finished, refused = int((r[:, col.ST] == col.FINISHED).sum()), int((r[:, col.ST] == col.REFUSED).sum())
    return {
        "all": len(r), "finished": finished, "refused": refused, "unfinished": len(r) - finished - refused,
        "retries": int(r[:, col.TRIES].sum()), "preemptions": int(r[:, col.PREEMPTED].sum()),
        "prompt_tokens": int(traffic.prompt.sum()), "new_tokens": int(traffic.out[r[:, col.ST] == col.FINISHED].sum()),
        "prefix_tokens_found": int(outcome.workers[:, col.HITS].sum()),
    }  # fmt: skip


def latencies(traffic: Traffic, outcome: Outcome) -> dict[str, Any]:
    """ttft, tpot and e2e in ps of the finished requests; tpot of those with two tokens or more, rounded down."""
    r = outcome.requests
    done = r[:, col.ST] == col.FINISHED
    first, end, out = r[done, col.TFIRST], r[done, col.TDONE], traffic.out[done]
    more = out > 1
    return {
        "ttft": first - traffic.arrival[done], "tpot": (end - first)[more] // (out - 1)[more],
        "e2e": end - traffic.arrival[done],
    }  # fmt: skip


def _spread(values: Any) -> Document:
    import numpy as np

    names = ("mean_s", *(f"p{share}_s" for share in SHARES))
    if not len(values):
        return {"count": 0} | dict.fromkeys(names)
    ordered = np.sort(values)
    ranks = [ordered[max(0, -(-len(ordered) * share // 100) - 1)] for share in SHARES]
    figures = [float(np.mean(ordered)), *(float(rank) for rank in ranks)]
    return {"count": len(values)} | {n: v / PICOSECONDS for n, v in zip(names, figures, strict=True)}


def _gap_spread(gaps: Any) -> Document:
    """Mean and percentiles of all gaps between tokens, out of their stretches: nothing is written out."""
    import numpy as np

    names = ("mean_s", *(f"p{share}_s" for share in SHARES))
    if not len(gaps):
        return {"count": 0} | dict.fromkeys(names)
    q = gaps[:, 4].astype(np.float64)
    first, growth, steps, tokens = gaps[:, 0] / q, gaps[:, 1] / q, gaps[:, 2], gaps[:, 3]
    count = int((steps * tokens).sum())
    total = float((tokens * (steps * first + growth * (steps * (steps - 1.0) / 2))).sum())
    high = float((first + growth * (steps - 1)).max())
    figures = [total / count]
    for share in SHARES:
        rank = -(-count * share // 100)
        low, top = 0, int(high) + 1
        while low < top:
            middle = (low + top) // 2
            beyond = np.where(growth > 0, np.floor((middle - first) / np.maximum(growth, 1e-9)) + 1, steps)
            below = np.where(first <= middle, np.clip(beyond, 0, steps), 0)
            if int((below * tokens).sum()) >= rank:
                top = middle
            else:
                low = middle + 1
        figures.append(float(low))
    return {"count": count} | {n: v / PICOSECONDS for n, v in zip(names, figures, strict=True)}


def _throughput(plant: Plant, traffic: Traffic, outcome: Outcome, last: int) -> Document:
    done = outcome.requests[:, col.ST] == col.FINISHED
    seconds = last / PICOSECONDS if last else None
    n_prefill, n_decode = len(plant.spec.prefill.devices), len(plant.spec.decode.devices)
    new, prompt = int(traffic.out[done].sum()), int(traffic.prompt[done].sum())

    def rate(amount: int, devices: int) -> float | None:
        return None if seconds is None else amount / seconds / devices

    return {
        "over": "seconds from the first arrival's clock zero to the last event; finished requests only",
        "requests_per_s": rate(int(done.sum()), 1),
        "new_tokens_per_s": rate(new, 1),
        "prompt_tokens_per_s_per_prefill_device": rate(prompt, n_prefill),
        "new_tokens_per_s_per_decode_device": rate(new, n_decode),
        "new_tokens_per_s_per_device": rate(new, n_prefill + n_decode),
    }


def _goodput(plant: Plant, traffic: Traffic, outcome: Outcome, times: dict[str, Any], last: int) -> Document | None:
    """Requests that met every bound, of all that came and a second; None where no SLO was given."""
    import numpy as np

    slo = plant.spec.slo
    if slo.ttft is slo.tpot is slo.e2e is None:
        return None
    done = outcome.requests[:, col.ST] == col.FINISHED
    more = traffic.out[done] > 1
    ok = {"ttft": times["ttft"] <= (slo.ttft or 0), "e2e": times["e2e"] <= (slo.e2e or 0)}
    held = np.ones(int(done.sum()), bool)
    held[more] = times["tpot"] <= (slo.tpot or 0)
    ok["tpot"] = held
    wanted = [name for name in ("ttft", "tpot", "e2e") if getattr(slo, name) is not None]
    good = int(np.logical_and.reduce([ok[name] for name in wanted]).sum())
    return {
        "met": good, "of_all": good / len(done), "per_s": good / (last / PICOSECONDS) if last else None,
        "met_each": {name: int(ok[name].sum()) for name in wanted},
    }  # fmt: skip


def _workers(plant: Plant, outcome: Outcome, last: int) -> list[Document]:
    rows = []
    unit = "bytes" if plant.is_bent else "blocks"
    for worker, v in zip(plant.workers, outcome.workers.tolist(), strict=True):
        rows.append({
            "device": worker.name, "phase": "prefill" if worker.role == col.PREFILL else "decode",
            "busy": v[col.BUSY] / last if last else 0.0, "steps": v[col.STEPS], "prompt_tokens": v[col.COMPUTED],
            f"kv_{unit}": worker.blocks, f"kv_{unit}_peak": v[col.PEAK], "preemptions": v[col.OUSTINGS],
        })  # fmt: skip
    return rows


def _queues(traffic: Traffic, outcome: Outcome, last: int) -> Document:
    """Mean numbers that wait, by Little's law from the waits of finished requests: for prefill, and for a handoff."""
    r = outcome.requests
    done = r[:, col.ST] == col.FINISHED
    moved = done & (r[:, col.THS] >= 0)
    waits = {
        "prefill": r[done, col.TADM] - traffic.arrival[done],
        "handoff": r[moved, col.THS] - r[moved, col.TPEND],
    }
    out = {}
    for name, wait in waits.items():
        held = wait.clip(0)
        total = float(held.sum())
        out[name] = {"mean": total / last if last else 0.0, "mean_wait_s": total / max(1, len(held)) / PICOSECONDS,
                     "longest_wait_s": float(held.max(initial=0)) / PICOSECONDS}  # fmt: skip
    return out


def _unfinished(outcome: Outcome) -> list[str]:
    r = outcome.requests
    refused = int((r[:, col.ST] == col.REFUSED).sum())
    left = int(((r[:, col.ST] != col.FINISHED) & (r[:, col.ST] != col.REFUSED)).sum())
    words = []
    if refused:
        words.append(
            f"{refused:,} requests refused: larger than the KV memory of any worker of a phase, or longer"
            " than the model's positions"
        )
    if left and outcome.counters[col.HEAP_SIZE]:
        days = col.NEVER // PICOSECONDS // 86400
        words.append(
            f"{left:,} requests had not ended: the next event would be more than {days} days after the start, which a"
            " run may last; the rates are too low for them"
        )
    elif left:
        words.append(f"{left:,} requests never ended: no worker that can take them is up")
    return words
