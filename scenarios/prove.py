"""The proof: the split run, the same request on one device, and every sabotage with the checks that it must trip.

`proved` means: the honest run passes every check that applies, each sabotage fails the checks that it must and passes
those that it must, and no required check is one that nothing here can fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from executor.facts import StrayReport, run_document
from executor.hands import Hands
from executor.isolate import run_isolated
from executor.run import LOSSES
from fleet.errors import BackendError, DescriptionError, InconclusiveError
from fleet.placement import Placement
from planner.orders import Step
from scenarios.case import Proof
from scenarios.checks_proof import LOCKABLE_BACKENDS
from scenarios.compare import compare
from scenarios.documents import plan_id
from scenarios.faulty_hands import Stale
from scenarios.limits import proof_limits, witnesses_of
from scenarios.planning import make_plan
from scenarios.runner import Bench, Memory, execute, plan_for, set_up
from scenarios.sabotage import SABOTAGES, Material, Sabotage
from scenarios.wanted import Prepared

Document = dict[str, Any]
Progress = Callable[[str, int, int], None]
"""Told before each part: what begins, how many parts are done, how many there are."""

_MEMORIES: tuple[Memory, ...] = ("poisoned", "zeroed")


@dataclass(frozen=True, kw_only=True, slots=True)
class Made:
    """One request made by certain hands: the run as it went, and what its isolated twin found."""

    run: Document
    deleted: dict[str, Document]
    lost: dict[str, Document]

    def proof(self, oracle: Document) -> Proof:
        """What the checks of a proof look at, beside this run."""
        return Proof(single_device=oracle, without_handoff=self.deleted, lost=self.lost)


def prove(
    prepared: Prepared,
    *,
    backend: str = "numba",
    emulate: bool = False,
    path: str | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
) -> tuple[Document, Document]:
    """(proof, plan). Raises InconclusiveError when the split is admitted but its oracle is not; `verdict` of a plan
    that is not admitted is left to the caller, who gets it with an empty proof.
    """
    plan = make_plan(prepared)
    if plan["verdict"] != "admitted":
        return {}, plan
    path = _path_of(backend, path)
    tell = progress or (lambda what, done, parts: None)
    parts = len(SABOTAGES) + 3
    tell("split", 0, parts)
    where: dict[str, Any] = {"backend": backend, "emulate": emulate, "path": path}
    bench = set_up(plan, tell=say, **where)
    clean = _make(bench, None, ("handoff_is_load_bearing", "decode_uses_its_own_memory"))
    tell("oracle", 1, parts)
    oracle_bench = set_up(_oracle_plan(prepared), **where)
    oracle = execute(oracle_bench)
    comparison = compare(plan_for(bench), clean.run, proof=clean.proof(oracle))
    clean.run["comparison"] = comparison
    oracle["comparison"] = compare(plan_for(oracle_bench), oracle)
    matrix = []
    if comparison["verdict"] == "equal":  # else the question is answered, and faults beside it would say nothing
        tell("another prompt", 2, parts)
        material = Material(stale=_stale_cache(bench), chosen=tuple(clean.run["generated_tokens"]))
        for number, sabotage in enumerate(SABOTAGES):
            tell(sabotage.name, number + 3, parts)
            applicable = _applicable(comparison)
            if not sabotage.physical_only or applicable.intersection(sabotage.must_fail):
                matrix.append(_try(sabotage, bench, clean, oracle, material, applicable))
    tell("done", parts, parts)
    return _proof(bench, clean, oracle, matrix), plan


def _path_of(backend: str, asked: str | None) -> str | None:
    """Sabotages of memory that no program can address are made operation by operation. DescriptionError for another
    path that was asked for.
    """
    if backend in LOCKABLE_BACKENDS or asked == "dispatch":
        return asked
    if asked is not None:
        told = (
            f"a proof on backend {backend} runs operation by operation: a captured graph is replayed whole, and no"
            " sabotage reaches into one; leave --path out (run replays graphs)"
        )
        raise DescriptionError.at("run", "path", told)
    return "dispatch"


def _proof(bench: Bench, clean: Made, oracle: Document, matrix: list[Document]) -> Document:
    comparison = clean.run["comparison"]
    never = _never_failed(comparison, matrix)
    return {
        "schema": "kvwaybill/proof/1",
        "verdict": _verdict([comparison, oracle["comparison"]], matrix, never),
        "plan_id": bench.plan["id"],
        "runs": {
            "split": clean.run,
            "single_device": oracle,
            **{f"without_handoff_{memory}": run for memory, run in clean.deleted.items()},
            **{f"lost_{name.replace(' ', '_')}": run for name, run in clean.lost.items()},
        },
        "comparisons": [
            {"name": "split", "comparison": comparison},
            {"name": "single device", "comparison": oracle["comparison"]},
        ],
        "matrix": matrix,
        "never_failed": never,
        "defaults": list(bench.plan["defaults"]),
        "limits": proof_limits(bench.orders.workload.attention, clean.run["tier"], witnesses_of(clean.run)),
    }


def _verdict(comparisons: list[Document], matrix: list[Document], never: list[str]) -> str:
    verdicts = {comparison["verdict"] for comparison in comparisons}
    if "different" in verdicts or any(row["verdict"] == "missed" for row in matrix):
        return "not proved"
    if "inconclusive" in verdicts:
        return "inconclusive"
    return "not proved" if never or not matrix else "proved"


def _applicable(comparison: Document) -> set[str]:
    """The checks that the honest run was really put to."""
    return {check["name"] for check in comparison["checks"] if check["result"] in ("passed", "failed")}


def _never_failed(comparison: Document, matrix: Iterable[Document]) -> list[str]:
    """Required checks that passed on the honest run and that no sabotage made fail."""
    failed = {name for row in matrix for name in row["failed"]}
    required = [c["name"] for c in comparison["checks"] if c["required"] and c["result"] == "passed"]
    return [name for name in required if name not in failed]


def _oracle_plan(prepared: Prepared) -> Document:
    """The same request on one device: prefill's, or decode's where prefill's cannot hold two caches."""
    asked = prepared.ask.placement
    for device in asked.devices:
        ask = replace(prepared.ask, placement=Placement(prefill=device, decode=device))
        plan = make_plan(replace(prepared, ask=ask))
        if plan["verdict"] == "admitted":
            return plan
    raise InconclusiveError(
        f"neither {' nor '.join(asked.devices)} holds the whole request, so there is nothing to compare the split with;"
        " ask for fewer steps"
    )


def _make(bench: Bench, hands: Callable[[], Hands] | None, asked: Iterable[str]) -> Made:
    """The request in the open and, where memory can be locked away, its isolated twin for stray accesses; for the
    checks asked for also without its handoff on each kind of memory, and with memory lost as decode begins.
    """
    make = hands or Hands
    run = execute(bench, hands=make())
    if run["backend"] in LOCKABLE_BACKENDS:
        run["stray"] = _isolated(bench, make(), run)
    deleted, lost = {}, {}
    if "handoff_is_load_bearing" in asked:
        for memory in _MEMORIES:
            deleted[str(memory)] = execute(bench, hands=make(), without=("handoff",), memory=memory)
    if "decode_uses_its_own_memory" in asked:
        for name in LOSSES:
            lost[str(name)] = execute(bench, hands=make(), lose=name)
    return Made(run=run, deleted=deleted, lost=lost)


def _isolated(bench: Bench, hands: Hands, run: Document) -> Document:
    """What the same request found when every arena that is no party to a step was closed to it."""
    isolated = run_isolated(bench.orders, bench.weights, bench.backend, hands=hands, path=bench.path)
    if isolated.facts is not None:
        twin = run_document(isolated.facts)
        if twin["tokens"] != run["tokens"] or twin["logits_top1_bits"] != run["logits_top1_bits"]:
            return {"accesses": 1, "detail": "the isolated twin of the run came to other tokens or logits"}
    return _stray(isolated.stray)


def _stray(report: StrayReport) -> Document:
    return {"accesses": report.accesses, "detail": report.detail}


def _try(
    sabotage: Sabotage, bench: Bench, clean: Made, oracle: Document, material: Material, applicable: set[str]
) -> Document:
    """One row of the matrix: which checks failed under the sabotage, and whether those were the right ones."""
    must_fail = [name for name in sabotage.must_fail if name in applicable]
    must_pass = [name for name in sabotage.must_pass if name in applicable]
    row: Document = {"sabotage": sabotage.name, "what": sabotage.what, "must_fail": must_fail, "must_pass": must_pass}
    if reason := _not_here(sabotage, bench, must_fail):
        return row | {"failed": [], "verdict": "waived", "detail": reason}
    try:
        comparison = _sabotaged(sabotage, bench, clean, oracle, material)
    except BackendError as error:
        return row | {"failed": [], "verdict": "caught", "detail": f"the executor refused: {error}"}
    results = {check["name"]: check for check in comparison["checks"]}
    failed = [name for name, check in results.items() if check["result"] == "failed"]
    missed = [name for name in must_fail if name not in failed]
    wronged = [name for name in must_pass if results[name]["result"] != "passed"]
    words = [f"{name}: {results[name]['detail']}" for name in failed]
    words += [f"{name} did not fail" for name in missed] + [f"{name} did not pass" for name in wronged]
    return row | {"failed": failed, "verdict": "missed" if missed or wronged else "caught", "detail": "; ".join(words)}


def _not_here(sabotage: Sabotage, bench: Bench, must_fail: list[str]) -> str | None:
    """Why this sabotage would be none for this plan; None when it is one."""
    if sabotage.split_only and bench.orders.prefill == bench.orders.decode:
        return "needs two devices"
    if bench.model.n_layers < sabotage.layers:
        return f"needs a model of {sabotage.layers} layers"
    return None if must_fail else "the checks that it must fail do not apply here"


def _sabotaged(sabotage: Sabotage, bench: Bench, clean: Made, oracle: Document, material: Material) -> Document:
    if sabotage.falsify is not None:
        plan = sabotage.falsify(plan_for(bench))
        plan = plan | {"id": plan_id(plan)}
        run = clean.run | {"plan_id": plan["id"]}
        return compare(plan, run, proof=clean.proof(oracle))
    if sabotage.falsify_run is not None:
        return compare(plan_for(bench), sabotage.falsify_run(clean.run), proof=clean.proof(oracle))
    make = sabotage.hands
    assert make is not None
    made = _make(bench, lambda: make(material), (*sabotage.must_fail, *sabotage.must_pass))
    return compare(plan_for(bench), made.run, proof=made.proof(oracle))


class _Capture(Hands):
    """Honest hands that keep a copy of the cache that the handoff left on the decode device."""

    def __init__(self) -> None:
        self.kept: Stale = {}

    def handoff(self, order: int, step: Step) -> None:
        super().handoff(order, step)
        if step.mode not in ("up", "down") and step.tensor in ("k", "v"):
            words = self.machine.cache(self.machine.orders.decode, "decode", step.tensor).wire()
            self.kept |= {(step.tensor, layer): np.array(part) for layer, part in enumerate(words)}


def _stale_cache(bench: Bench) -> Stale:
    """What another prompt of the same length leaves in decode's cache on the device."""
    work = bench.orders.workload
    assert work.prompt_ids is not None
    others = tuple((token + 1) % bench.model.vocab_size for token in work.prompt_ids)
    others = tuple(token if token != 1 else 2 % bench.model.vocab_size for token in others)  # a BOS would end it
    capture = _Capture()
    orders = replace(bench.orders, workload=replace(work, prompt_ids=others), expect=None)
    execute(replace(bench, orders=orders, tokenizer=None), hands=capture)
    return capture.kept
