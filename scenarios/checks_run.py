"""Whether a run's document agrees with itself and with what was ordered: ids, passes, dispatches, program, witnesses.

Rows are compared leg by leg and tokens with tokens; what is stated beside them could say anything if nobody looked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from scenarios.case import BOS, Case, Document, ends_walk
from scenarios.checks_inputs import digests
from scenarios.checks_physical import other_cards
from scenarios.checks_settings import means_nothing, settings_disagree, unseen
from scenarios.finding import Finding, failed, passed, waived
from scenarios.plan_figures import kv_payload

_MOVES_NOTHING = "null"
_PROCESSOR_BACKEND = "numba"
_MOST_TOLD = 6
_ORDERED_SETTINGS = ("attention", "kv_extent", "layout", "positions", "prefill_chunk")


def run_agrees_with_itself(case: Case) -> Finding:
    """Fails when one part of the run contradicts another, or the orders that it says it carried out."""
    found = list(contradictions(case))
    if not found:
        if finding := means_nothing(case.b):
            return finding
        return passed("ids, passes, dispatches, program, logits, settings and witnesses fit each other and the orders")
    more = f"; and {len(found) - _MOST_TOLD} more" if len(found) > _MOST_TOLD else ""
    return failed("; ".join(found[:_MOST_TOLD]) + more)


def runs_agree_with_themselves(case: Case) -> Finding:
    """Fails when one of two runs contradicts itself, as far as that shows without the orders that it carried out."""
    if any("tokens" not in document for document in (case.a, case.b)):
        return waived("concerns runs; two plans are compared here")
    found = [f"{name}: {words}" for name, run in (("A", case.a), ("B", case.b)) for words in _within(run)]
    if found:
        return failed("; ".join(found[:_MOST_TOLD]))
    for run in (case.a, case.b):
        if finding := means_nothing(run):
            return finding
    return passed("ids, passes, witnesses and sums of each fit each other, as far as runs alone can tell")


def _within(run: Document) -> Iterator[str]:
    """The contradictions that need no orders."""
    passes = sum(run["passes"].values())
    begins = ends_walk(run) is None or run["tokens"][:1] == [BOS]
    if not begins or len(run["tokens"]) != passes + 1:
        yield f"{len(run['tokens']):,} tokens for {passes:,} passes; a walk begins with BOS and has one more"
    if run["generated_tokens"] != run["tokens"][run["n_prompt_tokens"] :]:
        yield f"generated_tokens are not the tokens behind the {run['n_prompt_tokens']:,} of the prompt"
    yield from _stop(run)
    yield from _text(run)
    for phase, first in (("prefill", 0), ("decode", run["passes"]["prefill"])):
        yield from _steps(run, phase, first)
    for row in run["waybill"]:
        yield from _row(run, row)
    yield from _edges(run)
    yield from _twice(run)
    yield from unseen(run)


def contradictions(case: Case) -> Iterator[str]:
    """Each contradiction in words."""
    yield from _walk(case)
    yield from _stop(case.b)
    yield from _text(case.b)
    yield from _logits(case)
    yield from _settings(case)
    yield from settings_disagree(case)
    yield from _device_claims(case)
    yield from _dispatched_devices(case)
    for phase, first in (("prefill", 0), ("decode", case.b["passes"]["prefill"])):
        yield from _steps(case.b, phase, first)
        yield from _program(case, phase)
    for row in case.b["waybill"]:
        yield from _row(case.b, row)
    yield from _edges(case.b)
    yield from _payloads(case)
    yield from _twice(case.b)


def _walk(case: Case) -> Iterator[str]:
    """Every pass walks one id further than BOS; what lies behind the prompt was chosen."""
    run, tokens = case.b, case.b["tokens"]
    planned, stated = case.orders["workload"]["prompt_tokens"], run["n_prompt_tokens"]
    passes = sum(run["passes"].values())
    if stated != planned:
        yield f"n_prompt_tokens is {stated:,}, the orders have {planned:,}"
    if tokens[:1] != [BOS] and ends_walk(run) is not None:
        yield f"tokens begin with {tokens[0] if tokens else 'nothing'}, not with BOS ({BOS})"
    if len(tokens) != passes + 1:
        yield f"{len(tokens):,} tokens for {passes:,} passes; a walk has one more than its passes"
    if run["generated_tokens"] != tokens[planned:]:
        yield f"generated_tokens are not the tokens behind the {planned:,} of the prompt"
    size = (case.a["inputs"].get("model") or {}).get("vocab_size") if case.a.get("inputs") else None
    if size is not None:
        outside = [token for token in tokens if token >= size]
        if outside:
            yield f"id {outside[0]} is outside the vocabulary of {size:,}"
    prompt = case.orders["workload"].get("prompt_ids")
    named = digests(run.get("inputs")).get("workload")
    if prompt and named is not None and named == digests(case.a.get("inputs")).get("workload"):
        walked = tokens[:planned]
        if walked != prompt[: len(walked)]:
            yield "the run names the plan's own request, but walked another prompt"


def _stop(run: Document) -> Iterator[str]:
    """BOS ends a walk, and nothing else but the last pass does."""
    tokens = run["tokens"]
    bos = ends_walk(run)
    ended = len(tokens) > 1 and tokens[-1] == bos
    if (run["stopped"] == "bos") != ended:
        yield f"stopped is {run['stopped']}, but the walk ends with {tokens[-1] if tokens else 'nothing'}"
    if bos is not None and BOS in tokens[1:-1]:
        yield f"the walk goes on behind the BOS at index {tokens.index(BOS, 1)}"


def _text(run: Document) -> Iterator[str]:
    text, as_hex = run.get("text"), run.get("text_hex")
    if text is not None and as_hex is not None and bytes.fromhex(as_hex).decode("utf-8", "replace") != text:
        yield "text and text_hex are different texts"


def _logits(case: Case) -> Iterator[str]:
    """One pattern a pass that computed logits: with attention on the host every pass, else those that chose an id."""
    run = case.b
    every = case.orders["workload"]["attention"] == "host"
    wanted = sum(run["passes"].values()) if every else len(run["generated_tokens"])
    if len(run["logits_top1_bits"]) != wanted:
        yield f"{len(run['logits_top1_bits']):,} top logits; {wanted:,} passes computed logits"


def _settings(case: Case) -> Iterator[str]:
    settings, work = case.b.get("settings") or {}, case.orders["workload"]
    for name in _ORDERED_SETTINGS:
        if name in settings and settings[name] != work[name]:
            yield f"settings.{name} is {settings[name]}, ordered was {work[name]}"
    ordered = work.get("sampling") or {"temperature": 0.0}
    for name in ("temperature", "top_p", "seed"):
        if "temperature" in settings and settings.get(name) != ordered.get(name):
            yield f"settings.{name} is {settings.get(name)}, ordered was {ordered.get(name)}"
    across = [row for row in case.b["waybill"] if row["phase"] == "handoff" and row["kind"] in ("p2p", "d2d")]
    if "handoff" in (settings.get("without") or ()) and any(row["copies"] for row in across):
        yield "settings.without names the handoff, but its copies are counted"


def _device_claims(case: Case) -> Iterator[str]:
    """What the run says of the machine that it ran on."""
    run, kinds = case.b, {device["kind"] for device in case.orders["devices"]}
    if run["backend"] == _MOVES_NOTHING:
        yield f"backend {_MOVES_NOTHING} moves and computes nothing"
    elif not run["physical_devices"]:
        yield "no physical device is named"
    if run["tier"] == "on-device" and run["backend"] == _PROCESSOR_BACKEND and kinds != {"cpu"}:
        yield f"tier on-device, but backend {_PROCESSOR_BACKEND} computes on the processor only"
    yield from other_cards(case)
    stray = run.get("stray") or {}
    if case.proof is None and stray.get("accesses"):  # a proof judges it by a check of its own
        yield f"the run reports {stray['accesses']} stray accesses of its own"


def _dispatched_devices(case: Case) -> Iterator[str]:
    """Each dispatch under the identity of the ordered device, and no ordinal for two devices of one kind."""
    ordered = {device["id"]: device for device in case.orders["devices"]}
    ordinals: dict[tuple[str, int], str] = {}
    for entry in _alike(case.b["dispatches"], ("device", "topology_id", "ordinal")):
        name, device = entry["device"], ordered.get(entry["device"])
        if device is None:
            yield f"dispatches on {name}, which is not ordered"
            continue
        if entry["topology_id"] != device["topology_id"]:
            yield f"dispatches on {name} under topology id {entry['topology_id']}; it is {device['topology_id']}"
        ordinal = entry.get("ordinal")
        if ordinal is not None and ordinals.setdefault((device["kind"], ordinal), name) != name:
            yield f"{ordinals[device['kind'], ordinal]} and {name} dispatch under one ordinal, {ordinal}"


def _alike(entries: Iterable[Document], fields: tuple[str, ...]) -> Iterator[Document]:
    """One of those entries that agree in the fields."""
    seen = set()
    for entry in entries:
        key = tuple(entry.get(field) for field in fields)
        if key not in seen:
            seen.add(key)
            yield entry


def _steps(run: Document, phase: str, first: int) -> Iterator[str]:
    """The stretches of a phase go through its passes, from the first to the last, and never back."""
    entries = [entry for entry in run["dispatches"] if entry["phase"] == phase]
    last = first + run["passes"][phase] - 1
    if not entries:
        return  # decode_dispatched and dispatches_match tell it
    reached = first
    for entry in entries:
        if not reached <= entry["first_step"] <= entry["last_step"] <= last:
            yield f"{phase} dispatches of passes {entry['first_step']}..{entry['last_step']} after {reached} of {last}"
            return
        reached = entry["last_step"]
    if entries[0]["first_step"] != first or reached != last:
        yield f"{phase} dispatches cover passes {entries[0]['first_step']}..{reached}; made were {first}..{last}"


def _program(case: Case, phase: str) -> Iterator[str]:
    """The matmuls of one forward call, times the calls made, are the dispatches counted."""
    run, work = case.b, case.orders["workload"]
    passes = run["passes"][phase]
    counted = sum(entry["count"] for entry in run["dispatches"] if entry["phase"] == phase)
    matmuls = [operation for operation in run["program"][phase] if operation["op"] == "matmul"]
    classifiers = [operation for operation in matmuls if operation.get("layer") in (None, -1)]
    calls = -(-passes // work["prefill_chunk"]) if phase == "prefill" else passes
    # On the device, prefill asks for logits in its last call alone.
    once = phase == "prefill" and work["attention"] != "host"
    wanted = (len(matmuls) - len(classifiers)) * calls + len(classifiers) * (min(1, calls) if once else calls)
    if counted and counted != wanted:
        yield f"{counted:,} {phase} dispatches, but {calls:,} calls of its program make {wanted:,}"
    layers = ((case.a.get("inputs") or {}).get("model") or {}).get("n_layers")
    named = {operation["layer"] for operation in matmuls if operation.get("layer") not in (None, -1)}
    if layers is not None and passes and counted and named != set(range(layers)):
        yield f"the {phase} program has matmuls of {len(named)} layers; the model has {layers}"


def _row(run: Document, row: Document) -> Iterator[str]:
    """A row beside its legs: what arrived, who saw it, and what a pass moved."""
    ends = f"{row['phase']} {row['tensor']} {row['src']} -> {row['dst']}"
    legs = row.get("legs") or []
    for part in (row, *legs):
        if "witness" in part and (part["witness"] in (None, "none")) != (part.get("observed_bytes") is None):
            yield f"{ends}: witness {part['witness']} beside {_told(part.get('observed_bytes'))} observed bytes"
        if part.get("observed_copies") is not None and part.get("witness") == "arrival":
            yield f"{ends}: the arrival witness counts no copies, {part['observed_copies']} are stated"
    arriving = [leg for leg in legs if leg["dst"] == row["dst"]]
    if arriving and "observed_bytes" in row and row["observed_bytes"] != _seen(arriving):
        yield f"{ends}: {_told(row['observed_bytes'])} observed bytes, its legs {_told(_seen(arriving))}"
    if arriving and "witness" in row and row["witness"] not in {leg.get("witness", "none") for leg in arriving}:
        yield f"{ends}: witness {row['witness']}, its legs name another"
    passes = run["passes"].get(row["phase"], 0)
    for unit, figure in (row.get("per_pass") or {}).items():
        if figure is not None and figure * passes != row.get(unit):
            yield f"{ends}: {figure:,} {unit} a pass in {passes:,} passes are not {row.get(unit):,}"


def _seen(parts: list[Document]) -> int | None:
    figures = [part.get("observed_bytes") for part in parts]
    return None if None in figures else sum(figure for figure in figures if figure is not None)


def _told(figure: Any) -> str:
    return "no" if figure is None else f"{figure:,}"


def _edges(run: Document) -> Iterator[str]:
    """What a witness saw of an edge is the sum over its legs; unknown as soon as one of them was not seen."""
    legs = [leg for row in run["waybill"] for leg in row.get("legs") or ()]
    for edge in run["edges"]:
        if "observed_bytes" not in edge:
            continue
        mine = [leg for leg in legs if all(leg[end] == edge[end] for end in ("src", "dst", "kind"))]
        if mine and edge["observed_bytes"] != _seen(mine):
            stated, right = _told(edge["observed_bytes"]), _told(_seen(mine))
            yield f"edge {edge['src']} -> {edge['dst']}: {stated} observed bytes, its legs {right}"


def _payloads(case: Case) -> Iterator[str]:
    """Payload is what the tokens need: of K and V the prompt's positions, of every other row all of it."""
    planned = {_ends(row): row["bytes"] for row in case.a["waybill"]}
    for row in case.b["waybill"]:
        payload, wanted = row.get("payload_bytes"), row["bytes"]
        if row["phase"] == "handoff":
            # A handoff that moved other bytes is told as such; what it should have carried says nothing here.
            wanted = kv_payload(case.a) if row["bytes"] == planned.get(_ends(row)) else None
        if None not in (payload, wanted) and payload != wanted:
            phase, tensor, src, dst, _ = _ends(row)
            yield f"{phase} {tensor} {src} -> {dst} states a payload of {payload:,} B; it is {wanted:,} B"


def _ends(row: Document) -> tuple[str, ...]:
    return row["phase"], row["tensor"], row["src"], row["dst"], row["kind"]


def _twice(run: Document) -> Iterator[str]:
    for name in ("physical_devices", "resident"):
        for device, count in Counter(entry["device"] for entry in run[name]).items():
            if count > 1:
                yield f"{name} names {device} {count} times"
