"""What is run in an acceptance: cases, and their plans, which are made and written down before anything runs."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scenarios.documents import digest_of, write_document
from scenarios.planning import make_plan
from scenarios.wanted import Prepared, Wanted, prepare

__all__ = ["Case", "freeze", "golden_cases", "plain_cases", "prepared"]

Document = dict[str, Any]
ALONE, OTHER, SPLIT, BACK = ("gpu:0", "gpu:0"), ("gpu:1", "gpu:1"), ("gpu:0", "gpu:1"), ("gpu:1", "gpu:0")
PLACEMENTS = {"single 0": ALONE, "single 1": OTHER, "split 0->1": SPLIT, "split 1->0": BACK}
LENGTHS = (1, 16, 64, 200)


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One request on one placement. `same` names what all placements of it must agree on; `expect` the walked ids."""

    name: str
    same: str
    devices: tuple[str, str]
    ids: tuple[int, ...]
    steps: int
    model: str | None = None
    attention: str = "device"
    staged: bool = False
    chunk: int = 1
    positions: int | None = None
    expect: tuple[int, ...] | None = None


def golden_cases(folder: str) -> Iterator[Case]:
    """llama2.c's recorded runs that decode, on every placement; a few with attention on the host, or staged."""
    with open(os.path.join(folder, "golden.json"), encoding="utf-8") as file:
        runs = json.load(file)
    decoding = [run for run in runs if run["forward_calls"] > len(run["prompt_tokens"])]
    for number, run in enumerate(decoding):
        base: dict[str, Any] = {
            "same": f"golden {number:02d} {run['name']}", "ids": tuple(run["prompt_tokens"]), "steps": run["n_arg"],
            "model": os.path.join(folder, "stories260K.bin"), "expect": tuple(run["token_ids"]),
        }  # fmt: skip
        for placement, devices in PLACEMENTS.items():
            yield Case(name=f"{base['same']}, {placement}", devices=devices, **base)
        yield Case(name=f"{base['same']}, staged 0->1", devices=SPLIT, staged=True, **base)
        if number % 4 == 0:
            for devices in (ALONE, SPLIT):
                yield Case(name=f"{base['same']}, host {'->'.join(devices)}", devices=devices, attention="host", **base)


def plain_cases(model: str | None, vocab: int, lengths: Sequence[int] = LENGTHS, label: str = "") -> Iterator[Case]:
    """Made-up prompts of given lengths and forty decode passes, on every placement and both ways to copy."""
    for length in lengths:
        ids = (1, *(2 + (7919 * i) % (vocab - 2) for i in range(1, length)))
        base: dict[str, Any] = {"same": f"{label}{length} tokens", "ids": ids, "steps": length + 40, "model": model}
        for placement, devices in PLACEMENTS.items():
            yield Case(name=f"{base['same']}, {placement}", devices=devices, **base)
        yield Case(name=f"{base['same']}, staged 0->1", devices=SPLIT, staged=True, **base)


def prepared(case: Case, fleets: dict[bool, str]) -> Prepared:
    """The question of a case on the fleet file of its kind (`fleets`: by staged)."""
    wanted = Wanted(
        fleet=fleets[case.staged], model=case.model, prompt_tokens=len(case.ids), steps=case.steps,
        attention=case.attention, prefill=case.devices[0], decode=case.devices[1], positions=case.positions,
        prefill_chunk=case.chunk,
    )  # fmt: skip
    found = prepare(wanted)
    request = replace(found.ask.request, prompt_ids=case.ids, prompt_tokens=None)
    words = {name: value for name, value in found.inputs["workload"].items() if name != "digest"}
    digest = digest_of(words | {"prompt_ids": list(case.ids)})
    inputs = found.inputs | {"workload": words | {"digest": digest}}
    return replace(found, ask=replace(found.ask, request=request, expect=case.expect), inputs=inputs)


def freeze(cases: Sequence[Case], fleets: dict[bool, str], folder: str) -> dict[str, Document]:
    """The plans of all cases, written to `folder` with an index of their ids and digests. Nothing has run yet."""
    os.makedirs(folder, exist_ok=True)
    plans, index = {}, []
    assert len({case.name for case in cases}) == len(cases), "two cases share a name"
    for number, case in enumerate(cases):
        plan = make_plan(prepared(case, fleets))
        path = os.path.join(folder, f"plan-{number:03d}.json")
        write_document(path, plan)
        with open(path, "rb") as file:
            digest = hashlib.sha256(file.read()).hexdigest()
        handoff = plan.get("handoff") or {}
        index.append({
            "case": case.name, "file": os.path.basename(path), "plan_id": plan["id"], "sha256": digest,
            "verdict": plan["verdict"], "handoff_bytes": handoff.get("bytes"), "handoff_copies": handoff.get("copies"),
            "handoff_seconds": handoff.get("seconds"),
        })  # fmt: skip
        plans[case.name] = plan
    write_document(os.path.join(folder, "frozen.json"), {"schema": "kvwaybill/frozen/1", "plans": index})
    return plans
