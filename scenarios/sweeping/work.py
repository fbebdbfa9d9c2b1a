"""One case answered, in whatever process: bytes in, bytes out, so that every engine gives the same."""

from __future__ import annotations

import contextlib
import os
import pickle
import tempfile
import threading
import traceback
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from fleet.errors import DescriptionError, InconclusiveError
from scenarios.documents import canonical
from scenarios.sweeping.cases import program

Json = dict[str, Any]
MOST_REASONS = 20
_ready = threading.Lock()
_warm: list[bool] = []
MOST_PLANTS = 4
_plants: dict[bytes, Any] = {}


def answer(body: bytes, trace: bytes | None) -> bytes:
    """A case's answer as canonical JSON: verdict, reasons, figures; `faults` where the input is wrong after all; or
    `broke` and its `traceback` where something broke inside.

    `body` is a pickle of (question, what `cases` prepared), made by the process that asks.
    """
    try:
        return canonical({"answer": _found(body, trace), "program": program()})
    except Exception as error:  # noqa: BLE001 - told with the name of its case, and the other cases go on
        words = " ".join(f"{type(error).__name__}: {error}".split())
        found = {"broke": words[:300], "traceback": "".join(traceback.format_exception(error))}
        return canonical({"answer": found, "program": program()})


def _found(body: bytes, trace: bytes | None) -> Json:
    question, asked = pickle.loads(body)
    try:
        return _admitted(asked) if question == "admit" else _simulated(asked, trace)
    except DescriptionError as error:
        fields = ("source", "field", "message", "line", "column")
        return {"faults": [{name: getattr(fault, name) for name in fields} for fault in error.faults]}
    except InconclusiveError as error:
        reason = {"code": "FIGURE_UNKNOWN", "severity": "unknown", "message": str(error)}
        return {"verdict": "unverified", "reasons": [reason], "figures": None, "lower_bounds": []}


def _admitted(prepared: Any) -> Json:
    from scenarios.admissions import admission_row
    from scenarios.planning import make_plan

    plan = make_plan(prepared)
    time, handoff, row = plan.get("time") or {}, plan.get("handoff") or {}, admission_row(plan)
    figures = {
        "ttft_s": time.get("ttft_s"), "tpot_s": time.get("tpot_s"), "handoff_s": handoff.get("seconds"),
        "handoff_bytes": handoff.get("bytes"), "slack_bytes": row["margin_bytes"],
    }  # fmt: skip
    least = {"ttft_s": time.get("ttft_lower_bound"), "tpot_s": time.get("tpot_lower_bound"),
             "handoff_s": handoff.get("lower_bound")}  # fmt: skip
    return {
        "verdict": plan["verdict"], "reasons": _reasons(plan["reasons"]), "figures": figures,
        "lower_bounds": [name for name, one in least.items() if one],
    }  # fmt: skip


def _reasons(reasons: list[Json]) -> list[Json]:
    """Those that decide, in the planner's words."""
    return [reason for reason in reasons if reason["severity"] != "warning"][:MOST_REASONS]


def _simulated(asked: Any, trace: bytes | None) -> Json:
    from planner.plan import reason_document
    from scenarios.simulation.run import run_plant, traffic_of

    spec, fleet, model = asked
    make_ready()
    plant = _plant(spec, fleet, model)
    done = run_plant(plant, traffic_of(spec) if trace is None else pickle.loads(trace))
    if done.document is None:
        refused = done.plant.refused
        reasons = [] if refused is None else [reason_document(reason) for reason in refused.reasons]
        return {"verdict": done.verdict, "reasons": _reasons(reasons), "figures": None, "lower_bounds": []}
    return {"verdict": "admitted", "reasons": [], "figures": figures_of(done.document), "lower_bounds": []}


def _plant(spec: Any, fleet: Any, model: Any) -> Any:
    """The admitted workers; those of the case before where only the requests and SLOs differ from it."""
    from scenarios.simulation.plant import build
    from scenarios.simulation.spec import Slo

    asked = dict.fromkeys(("arrivals", "prompts", "answers", "trace", "name")) | {"seed": 0, "slo": Slo()}
    known = pickle.dumps((replace(spec, **asked), fleet.digest, model.digest), protocol=5)
    found = _plants.get(known)
    if found is not None:
        return replace(found, spec=spec)
    found = build(spec, fleet, model)
    while len(_plants) >= MOST_PLANTS:
        _plants.pop(next(iter(_plants), b""), None)
    _plants[known] = found
    return found


def figures_of(document: Json) -> Json:
    """The figures of a `kvwaybill/simulation/1` that a sweep compares."""
    requests, rates, good = document["requests"], document["throughput"], document["goodput"]
    figures = {
        f"{of}_{name}": value
        for of, row in document["latency"].items() for name, value in row.items() if name != "count"
    }  # fmt: skip
    return figures | {
        "goodput": None if good is None else good["of_all"], "finished": requests["finished"] / requests["all"],
        "requests_per_s": rates["requests_per_s"], "tokens_per_s": rates["new_tokens_per_s"],
        "tokens_per_s_per_device": rates["new_tokens_per_s_per_device"], "preemptions": requests["preemptions"],
        "handoff_bytes": document["handoffs"]["bytes"], "requests": requests["all"],
        "tpot_requests": document["latency"]["tpot"]["count"],
    }  # fmt: skip


def make_ready() -> None:
    """The event loop compiled, once a process. Processes of one machine wait for the first of them to compile it."""
    with _ready:
        if _warm:
            return
        from executor.jit import cache_note
        from scenarios.simulation.run import run_spec
        from scenarios.simulation.spec import Pool, Spec
        from scenarios.simulation.traffic import Arrivals, Lengths

        one = Lengths(kind="fixed", value=1)
        tiny = Spec(
            fleet="two-gpu-nvlink", prefill=Pool(devices=("gpu:0",)), decode=Pool(devices=("gpu:1",)), prompts=one,
            answers=one, arrivals=Arrivals(kind="constant", rate=1.0, requests=1),
        )  # fmt: skip
        with contextlib.nullcontext() if cache_note() else _alone():
            run_spec(tiny)
        _warm.append(True)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Other processes of this user wait meanwhile; none does where the system has no such lock."""
    try:
        import fcntl

        path = os.path.join(tempfile.gettempdir(), f"kvwaybill-compiles-{os.getuid()}.lock")
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except (ImportError, OSError, AttributeError):
        yield
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
