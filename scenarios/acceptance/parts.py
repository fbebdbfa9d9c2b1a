"""The parts of the two-GPU acceptance, each a function from what is there to plain values for the summary."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from executor.cuda.driver import Card, Driver, DriverError, selected
from executor.cuda.rates import SIZES, Line, measure_edges, measure_pair
from executor.observers.nvml_counters import counter_rise
from fleet.errors import KvWaybillError
from scenarios.acceptance.cases import ALONE, SPLIT, Case, freeze, prepared
from scenarios.acceptance.checkpoint import SHAPES, write_random_checkpoint
from scenarios.documents import read_document, write_document
from scenarios.prove import prove
from scenarios.runner import run_and_compare, set_up

__all__ = ["Bench", "large", "links", "other_order", "proof_of", "run_all", "table", "what_is_wrong"]

Document = dict[str, Any]
COUNTED_BYTES = 1 << 30
HOST_SIZES_TO = 1 << 26
"""Copies to and from pageable memory take minutes beyond it, and no plan uses their rate."""
LARGE_PROMPT, LARGE_DECODE = 2048, 8
HANDOFF_TOLERANCE = 0.05
_SECONDS = 300


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """Where results go, the fleet files by staged, and whether one card plays both."""

    out: str
    fleets: dict[bool, str]
    emulate: bool
    cards: list[Card]


def run_all(bench: Bench, cases: Sequence[Case], plans: dict[str, Document]) -> list[Document]:
    """Every frozen plan, read back from its file and run; what was seen of each."""
    results = []
    walked: dict[str, tuple[Any, ...]] = {}
    for number, case in enumerate(cases):
        plan = read_document(os.path.join(bench.out, "plans", f"plan-{number:03d}.json"), ("plan",))
        assert plan["id"] == plans[case.name]["id"]
        try:
            run = run_and_compare(set_up(plan, backend="cupy", emulate=bench.emulate))
        except KvWaybillError as error:
            results.append({"case": case.name, "verdict": "not run", "why": str(error)})
            continue
        row = seen_of(case, plan, run)
        first = walked.setdefault(case.same, tuple(run["tokens"]))
        row["tokens_as_other_placements"] = tuple(run["tokens"]) == first
        results.append(row)
        if number in (0, 2):
            write_document(os.path.join(bench.out, f"run-{number:03d}.json"), run)
    return results


def seen_of(case: Case, plan: Document, run: Document) -> Document:
    """What a run showed: verdict and checks, the devices at dispatch, the driver's copies of the handoff, its time."""
    comparison, driver = run["comparison"], run["driver"]
    checks = {check["name"]: check["result"] for check in comparison["checks"]}
    handoff = [copy for copy in driver.get("copies", ()) if copy["phase"] == "handoff"]
    span = (max(c["last_ns"] for c in handoff) - min(c["first_ns"] for c in handoff)) / 1e9 if handoff else None
    rows: dict[str, int] = {}
    for row in comparison["rows"]:
        rows[row["verdict"]] = rows.get(row["verdict"], 0) + 1
    return {
        "case": case.name, "plan_id": plan["id"], "verdict": comparison["verdict"], "tier": run["tier"],
        "failed": [name for name, result in checks.items() if result == "failed"],
        "inconclusive": [name for name, result in checks.items() if result == "inconclusive"],
        "two_physical_devices": checks["two_physical_devices"], "reference": checks["tokens_equal_reference"],
        "rows": rows, "witness": driver["witness"],
        "dispatches": [[d["phase"], d["device"], d["ordinal"], d["count"]] for d in run["dispatches"]],
        "current_device_at_dispatch": [[d["ordinal"], d["dispatches"]] for d in driver["current_device_at_dispatch"]],
        "handoff": {
            "predicted_bytes": (plan.get("handoff") or {}).get("bytes"),
            "predicted_copies": (plan.get("handoff") or {}).get("copies"),
            "predicted_seconds": (plan.get("handoff") or {}).get("seconds"), "observed_seconds": span,
            "driver": [
                [c["kind"], c["src_ordinal"], c["dst_ordinal"], c["copies"], c["bytes"], c["peer_calls"]]
                for c in handoff
            ],
        },
        "rates": run["rates"],
    }  # fmt: skip


def proof_of(bench: Bench, cases: Sequence[Case]) -> Document:
    """The proof, with every sabotage, of the first split."""
    case = next(case for case in cases if case.devices == SPLIT and not case.staged and len(case.ids) > 4)
    proof, plan = prove(prepared(case, bench.fleets), backend="cupy", emulate=bench.emulate)
    if not proof:
        return {"case": case.name, "verdict": plan["verdict"]}
    write_document(os.path.join(bench.out, "proof.json"), proof)
    matrix = {row["sabotage"]: {k: row[k] for k in ("verdict", "failed")} for row in proof["matrix"]}
    return {
        "case": case.name, "verdict": proof["verdict"], "never_failed": proof["never_failed"], "matrix": matrix,
    }  # fmt: skip


def other_order(bench: Bench, cases: Sequence[Case]) -> Document:
    """The first split's plan in a process to which the cards are shown the other way round."""
    number = next(n for n, case in enumerate(cases) if case.devices == SPLIT and not case.staged)
    plan_path = os.path.join(bench.out, "plans", f"plan-{number:03d}.json")
    run_path = os.path.join(bench.out, "run-other-order.json")
    command = [
        sys.executable,
        "-m",
        "scenarios.cli",
        "run",
        plan_path,
        "--backend",
        "cupy",
        "--run-out",
        run_path,
        "-q",
    ]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "1,0"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False)
    result: Document = {"code": done.returncode, "said": done.stderr[-400:]}
    if done.returncode in (0, 1) and os.path.exists(run_path):
        run = read_document(run_path, ("run",))
        planned = {device["id"]: device["uuid"] for device in read_document(plan_path, ("plan",))["orders"]["devices"]}
        result["ordinals"] = [[d["device"], d["ordinal"]] for d in run["dispatches"]]
        result["on_planned_cards"] = all(d["uuid"] == planned[d["device"]] for d in run["dispatches"])
        os.unlink(run_path)
    return result


def links(driver: Driver) -> Document:
    """Rates of every edge, each way and both at once, without and with peer access, and what the counters say."""
    sizes = [size for size in SIZES if size <= HOST_SIZES_TO]
    result: Document = {f"card_{ordinal}": measure_edges(driver, ordinal, sizes) for ordinal in (0, 1)}
    for a, b in ((0, 1), (1, 0)):
        if driver.can_access_peer(a, b):
            with selected(driver, a):
                driver.enable_peer(b)
    result["pair"] = measure_pair(driver, 0, 1)
    result["counters"] = _counted(driver)
    result["peer_copy_in_a_graph"] = _captured(driver)
    return result


def _counted(driver: Driver) -> Document:
    """The cards' byte counters around one peer copy of 1 GiB."""
    with selected(driver, 1):
        dst = driver.malloc(COUNTED_BYTES)
    with selected(driver, 0):
        src, stream = driver.malloc(COUNTED_BYTES), driver.stream()
        before = [driver.counters(ordinal) for ordinal in (0, 1)]
        driver.copy_peer(dst, 1, src, 0, COUNTED_BYTES, stream)
        driver.synchronize(stream)
        time.sleep(0.2)  # the driver refreshes its counters a few times a second
        after = [driver.counters(ordinal) for ordinal in (0, 1)]
        driver.free(src)
        driver.end_stream(stream)
    with selected(driver, 1):
        driver.free(dst)
    rises = [counter_rise(first, last) for first, last in zip(before, after, strict=True)]
    return {"payload_bytes": COUNTED_BYTES, "card_0": rises[0], "card_1": rises[1]}


def _captured(driver: Driver) -> str:
    """Whether a peer copy between two cards can be part of a captured graph here, in words."""
    with selected(driver, 1):
        dst = driver.malloc(4096)
    with selected(driver, 0):
        src, stream = driver.malloc(4096), driver.stream()
        said = "yes"
        driver.begin_capture(stream)
        try:
            driver.copy_peer(dst, 1, src, 0, 4096, stream)
        except DriverError as error:
            said = f"no: {error}"
        try:
            driver.end_graph(driver.end_capture(stream))
        except DriverError as error:
            said = said if said != "yes" else f"no: {error}"
        driver.free(src)
        driver.end_stream(stream)
    with selected(driver, 1):
        driver.free(dst)
    return said


def large(bench: Bench, path: str, rates: Document | None) -> Document:
    """A checkpoint of the 7B shape: 2,048 tokens prefilled on one card, handed over, a few decoded on the other."""
    nbytes = write_random_checkpoint(path, "7B")
    vocab = SHAPES["7B"][5]
    ids = (1, *(2 + (7919 * i) % (vocab - 2) for i in range(1, LARGE_PROMPT)))
    base: dict[str, Any] = {
        "same": "7B shape", "ids": ids, "steps": LARGE_PROMPT + LARGE_DECODE, "model": path, "chunk": LARGE_PROMPT,
        "positions": LARGE_PROMPT + LARGE_DECODE,
    }  # fmt: skip
    cases = [
        Case(name="7B shape, split 0->1", devices=SPLIT, **base),
        Case(name="7B shape, single 0", devices=ALONE, **base),
    ]
    folder = os.path.join(bench.out, "large")
    plans = freeze(cases, bench.fleets, os.path.join(folder, "plans"))
    there = Bench(out=folder, fleets=bench.fleets, emulate=bench.emulate, cards=bench.cards)
    try:
        runs = run_all(there, cases, plans)
    finally:
        os.unlink(path)
    return {"checkpoint_bytes": nbytes, "runs": runs, "handoff": _against_rates(runs[0], rates)}


def _against_rates(run: Document, rates: Document | None) -> Document:
    """The handoff's time beside alpha * copies + bytes / beta as measured on this machine just before."""
    if rates is None or "handoff" not in run:
        return {"within": None, "why": "no rate of this pair was measured"}
    handoff, line = run["handoff"], rates["pair"]["peer_0_to_1"]["train"]
    measured = Line(line["alpha_s"], line["beta_bytes_per_s"])
    expected = measured.seconds(handoff["predicted_bytes"], handoff["predicted_copies"])
    observed = handoff["observed_seconds"]
    return {
        "bytes": handoff["predicted_bytes"], "copies": handoff["predicted_copies"], "expected_seconds": expected,
        "observed_seconds": observed, "error": observed / expected - 1,
        "within": abs(observed / expected - 1) <= HANDOFF_TOLERANCE,
    }  # fmt: skip


def what_is_wrong(summary: Document) -> list[str]:
    """Every part that does not hold, in words; nothing is left out because something else failed first."""
    return [*_wrong_runs(summary.get("runs", ())), *_wrong_runs((summary.get("large") or {}).get("runs", ())),
            *_wrong_parts(summary)]  # fmt: skip


def _wrong_runs(runs: Sequence[Document]) -> Iterator[str]:
    for run in runs:
        if run["verdict"] != "equal":
            why = run.get("why") or ", ".join([*run["failed"], *run["inconclusive"]])
            yield f"{run['case']}: {run['verdict']} ({why})"
        elif not run["tokens_as_other_placements"]:
            yield f"{run['case']}: other ids than the same request on another placement"


def _wrong_parts(summary: Document) -> Iterator[str]:
    if summary["fleet"].get("agree") is False:
        yield "fleet: discovery and the imported topology do not agree"
    if "proof" in summary and summary["proof"]["verdict"] != "proved":
        yield f"proof: {summary['proof']['verdict']}"
    order = summary.get("other_order")
    if order is not None and not (order["code"] == 0 and order.get("on_planned_cards")) and order["code"] != CODE_3:
        yield f"other order of visible cards: code {order['code']}, {order['said']}"
    if (summary.get("large") or {}).get("handoff", {}).get("within") is False:
        yield "7B shape: the handoff took another time than its rates say"


CODE_3 = 3


def table(summary: Document) -> str:
    """The summary as text: a line a run, then the rest."""
    lines = []
    runs = [*summary["runs"], *(summary.get("large") or {}).get("runs", ())]
    for run in runs:
        handoff = run.get("handoff") or {}
        seen = "; ".join(f"{k} {a}->{b} {n} x {size:,} B" for k, a, b, n, size, _ in handoff.get("driver", ()))
        lines.append(f"{run['case']:44} {run['verdict']:10} {seen}")
    for name in ("proof", "other_order"):
        if name in summary:
            told = {k: v for k, v in summary[name].items() if k != "matrix"}
            lines.append(f"{name}: {told}")
    if "links" in summary:
        pair = summary["links"]["pair"]
        for edge in (name for name in pair if name.startswith("peer")):
            fit = pair[edge]["train"]
            lines.append(f"{edge}: {fit['alpha_s'] * 1e6:.2f} us + bytes / {fit['beta_bytes_per_s'] / 1e9:.1f} GB/s")
        lines.append(f"both at once: {pair['both_at_once']}")
        lines.append(f"counters: {summary['links']['counters']}")
    if "large" in summary:
        lines.append(f"7B handoff: {summary['large']['handoff']}")
    lines += [f"WRONG {text}" for text in summary["wrong"]]
    lines.append(f"verdict: {summary['verdict']}")
    return "\n".join(lines) + "\n"
