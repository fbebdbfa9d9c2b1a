"""Every check of a comparison: one small function each, from a Case to a result and a sentence with figures.

A check that does not apply is `waived`; one that applies and cannot be told here is `inconclusive`; neither ever reads
as passed. Each function says in its docstring what makes it fail.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from scenarios.beside_strict import tokens_equal_strict
from scenarios.case import Case, Document
from scenarios.checks_edges import edges_match, handoff_bytes_match, memory_disagrees
from scenarios.checks_inputs import same_inputs
from scenarios.checks_physical import two_physical_devices
from scenarios.checks_plain import CHANGES
from scenarios.checks_proof import (
    decode_uses_its_own_memory,
    handoff_is_load_bearing,
    no_stray_access,
    tokens_equal_single_device,
)
from scenarios.checks_run import run_agrees_with_itself
from scenarios.compute_dtype import narrow_of, not_promised
from scenarios.finding import Finding, failed, inconclusive, no_decode, passed, waived


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Dispatches in a row of one phase on one device."""

    phase: str
    device: str
    topology_id: int | None
    count: int
    first_step: int | None
    last_step: int | None


def judge(case: Case) -> list[Document]:
    """All checks of this comparison as the documents word them, in a fixed order."""
    if case.expected is not None:
        checks = dict(MEASURED) | (PROVED if case.proof is not None else {})
        settings = case.b.get("settings") or {}
        if settings.get("fast") or narrow_of(settings):
            checks |= FAST
        return [_worded(name, check(case)) for name, check in checks.items()]
    judged = [_worded(name, change(case)) for name, change in CHANGES.items()]
    both = "two plans" if str(case.a["schema"]).startswith("kvwaybill/plan/") else "two runs"
    skipped = waived(f"concerns a plan and its run; {both} are compared here")
    return judged + [_worded(name, skipped) for name in MEASURED if name not in CHANGES]


def _worded(name: str, finding: Finding) -> Document:
    return {"name": name, "required": finding.required, "result": finding.result, "detail": finding.detail}


def one_program_text(case: Case) -> Finding:
    """Fails when one forward call of decode differs from prefill's; shapes stand there less the token count.

    A classifier that prefill was not asked for (operations after the layers, at the end of decode's call) is set aside.
    """
    if finding := no_decode(case):
        return finding
    prefill, decode = case.b["program"]["prefill"], case.b["program"]["decode"]
    if not prefill or not decode:
        return failed(
            f"prefill recorded {len(prefill)} operations and decode {len(decode)}; both must record their text"
        )
    for index, (first, second) in enumerate(zip(prefill, decode, strict=False)):
        if _operation(first) != _operation(second):
            return failed(f"operation {index} is {_operation(first)} in prefill and {_operation(second)} in decode")
    rest = decode[len(prefill) :]
    if len(prefill) > len(decode):
        return failed(f"prefill goes on after decode ends, with {_operation(prefill[len(decode)])}")
    if any(_layer(operation) >= 0 for operation in rest):
        return failed(f"decode goes on after prefill ends, with {_operation(rest[0])}")
    aside = f"; {len(rest)} operations of a classifier that prefill was not asked for aside" if rest else ""
    return passed(f"{len(prefill)} operations of one forward call are the same in both phases{aside}")


def _layer(operation: Document) -> int:
    layer = operation.get("layer")
    return -1 if layer is None else int(layer)


def _operation(operation: Document) -> str:
    layer = f" of layer {_layer(operation)}" if _layer(operation) >= 0 else ""
    return f"{operation['op']} {operation.get('tensor') or ''}{layer} {operation.get('shape') or []}".replace("  ", " ")


def decode_dispatched(case: Case) -> Finding:
    """Fails when the decode phase dispatched nothing, or not as many steps as its passes take."""
    if finding := no_decode(case):
        return finding
    assert case.expected is not None
    count = sum(entry["count"] for entry in case.b["dispatches"] if entry["phase"] == "decode")
    wanted = case.expected.dispatches(case.a, "decode")
    passes = case.expected.made["decode"]
    if not count:
        return failed(f"no dispatch in {passes} decode passes")
    if wanted is None:
        return inconclusive(f"{count:,} decode dispatches, but the plan does not say how many there should be")
    if count != wanted:
        return failed(f"{count:,} decode dispatches; {passes} decode passes take {wanted:,}")
    return passed(f"{count:,} decode dispatches in {passes} passes")


def dispatches_match(case: Case) -> Finding:
    """Fails when a phase made other passes, or other dispatches, than the plan's figures for the passes made."""
    assert case.expected is not None
    expected, unlike = case.expected, []
    for phase in ("prefill", "decode"):
        made = case.b["passes"][phase]
        if made != expected.made[phase]:
            unlike.append(f"{made:,} {phase} passes, planned {expected.made[phase]:,}")
        count = sum(entry["count"] for entry in case.b["dispatches"] if entry["phase"] == phase)
        wanted = expected.dispatches(case.a, phase)
        # Where BOS cut the prompt itself short the passes of prefill are not alike: logits come with its last one.
        cut_short = phase == "prefill" and expected.made[phase] != expected.full[phase]
        if wanted is not None and count != wanted and not cut_short:
            unlike.append(f"{count:,} {phase} dispatches, planned {wanted:,}")
    if unlike:
        return failed("; ".join(unlike))
    return passed(f"{expected.made['prefill']:,} prefill and {expected.made['decode']:,} decode passes as planned")


def device_switch_at_phase_boundary(case: Case) -> Finding:
    """Fails unless all of prefill ran on its device and then all of decode on its own: one stray dispatch is enough."""
    if case.is_oracle:
        return waived("prefill and decode are placed on one device")
    if finding := no_decode(case):
        return finding
    stretches = _stretches(case.b["dispatches"])
    wanted = [(phase, case.orders[phase]) for phase in ("prefill", "decode")]
    found = [(stretch.phase, stretch.device) for stretch in stretches]
    if found != wanted:
        stray = next((s for s, want in zip(stretches, wanted, strict=False) if (s.phase, s.device) != want), None)
        if stray is None:
            stray = stretches[len(wanted)] if len(stretches) > len(wanted) else None
        return failed(_stray_words(stretches, stray))
    for stretch in stretches:
        known = case.topology_id(stretch.device)
        if stretch.topology_id is not None and stretch.topology_id != known:
            return failed(f"{stretch.device} dispatched under topology id {stretch.topology_id}; it is {known}")
    before, after = stretches
    if before.last_step is not None and after.first_step is not None and before.last_step >= after.first_step:
        return failed(f"decode begins with pass {after.first_step}, but prefill ends with pass {before.last_step}")
    return passed(
        f"one switch, {before.device} to {after.device}, after {before.count:,} prefill dispatches"
        f" and before {after.count:,} of decode"
    )


def _stray_words(stretches: list[_Stretch], stray: _Stretch | None) -> str:
    told = [f"{s.phase} {s.count:,} on {s.device}" for s in stretches[:6]]
    more = f" and {len(stretches) - 6} more stretches" if len(stretches) > 6 else ""
    words = f"dispatches in order: {', '.join(told) or 'none'}{more}"
    if stray is None:
        return words
    return f"{stray.count:,} {stray.phase} dispatches on {stray.device} at pass {stray.first_step}; {words}"


def _stretches(entries: list[Document]) -> list[_Stretch]:
    """The run-length sequence with neighbours of one phase and device merged."""
    merged: list[_Stretch] = []
    for entry in entries:
        if not entry["count"]:
            continue
        first, last = entry.get("first_step"), entry.get("last_step")
        topology_id = entry.get("topology_id")
        before = merged[-1] if merged else None
        key = (entry["phase"], entry["device"], topology_id)
        if before and (before.phase, before.device, before.topology_id) == key:
            merged[-1] = _Stretch(
                before.phase, before.device, topology_id, before.count + entry["count"], before.first_step, last
            )
        else:
            merged.append(_Stretch(entry["phase"], entry["device"], topology_id, entry["count"], first, last))
    return merged


def kv_content_arrived(case: Case) -> Finding:
    """Fails when a (tensor, layer) has no digest, or arrived otherwise than it left: swapped, stale, short, moved."""
    if finding := no_decode(case):
        return finding
    arrivals = case.b["arrivals"]
    if not arrivals:
        return inconclusive("no witness took digests of K and V")
    wanted = {(tensor, layer) for tensor in ("k", "v") for layer in range(_n_layers(case))}
    found = [(entry["tensor"], entry["layer"]) for entry in arrivals]
    if missing := sorted(wanted - set(found)):
        return failed(f"no digest of {_pairs(missing)}: {len(missing)} of {len(wanted)} pairs of tensor and layer")
    if len(set(found)) != len(found) or set(found) != wanted:
        return failed(f"{len(found)} digests for {len(wanted)} pairs of tensor and layer")
    unseen = [entry for entry in arrivals if entry["digest_src"] is None or entry["digest_dst"] is None]
    if unseen:
        return inconclusive(f"{len(unseen)} of {len(arrivals)} pairs of tensor and layer have no digest at both ends")
    wrong = [(e["tensor"], e["layer"]) for e in arrivals if e["digest_src"] != e["digest_dst"]]
    if wrong:
        return failed(f"{_pairs(wrong)} arrived with other content: {len(wrong)} of {len(arrivals)} digests differ")
    for tensor in ("k", "v"):
        # A layer's neighbour with the same content could stand in its place: a swap would not be seen.
        alike = [entry["digest_src"] for entry in arrivals if entry["tensor"] == tensor]
        if len(alike) > 1 and len(set(alike)) == 1:
            return inconclusive(
                f"all {len(alike)} digests of {tensor} are alike, so a swap of layers could not be seen"
            )
    if len({entry["digest_src"] for entry in arrivals}) == 1:
        return inconclusive("k and v have one digest, so a swap of the two could not be seen")
    return passed(f"{len(arrivals)} digests equal at both ends (k and v, {len(wanted) // 2} layers)")


def _n_layers(case: Case) -> int:
    """Layers that the orders hand over."""
    return max((step["layers"][1] for step in case.orders["steps"] if step["op"] == "handoff"), default=0)


def _pairs(pairs: list[tuple[str, int]]) -> str:
    told = ", ".join(f"{tensor} of layer {layer}" for tensor, layer in pairs[:4])
    return told + (f" and {len(pairs) - 4} more" if len(pairs) > 4 else "")


def resident_match(case: Case) -> Finding:
    """Fails when an arena's high-water mark is not the sum of the plan's lines (runtime and rounding aside).

    Also when the plan's own memory table does not add up: totals, slack and fences are judged by nothing else.
    """
    found = {entry["device"]: entry["high_water_bytes"] for entry in case.b["resident"]}
    wanted = {entry["device"]: _planned(entry["resident"]) for entry in case.a["memory"]}
    for arena in case.orders["arenas"]:
        wanted.setdefault(arena["arena"], _buffer_bytes(arena["buffers"]))
    unlike = [
        f"{arena} held {_figure(found.get(arena, 0))}, planned {_figure(wanted.get(arena, 0))}"
        for arena in [*wanted, *(arena for arena in found if arena not in wanted)]
        if None not in (found.get(arena, 0), wanted.get(arena, 0)) and found.get(arena, 0) != wanted.get(arena, 0)
    ]
    unlike = (unlike if found else []) + memory_disagrees(case.a)
    if unlike:
        return failed("; ".join(unlike))
    unknown = [arena for arena in wanted if arena not in found or found[arena] is None or wanted[arena] is None]
    if unknown:
        return inconclusive(f"no high-water mark for {', '.join(unknown)}")
    told = ", ".join(f"{arena} {_figure(figure)}" for arena, figure in found.items())
    return passed(f"buffers as planned in each of {len(wanted)}: {told}")


def _planned(lines: dict[str, int | None]) -> int | None:
    figures = [figure for line, figure in lines.items() if line != "runtime"]
    return None if None in figures else sum(figure for figure in figures if figure is not None)


def _buffer_bytes(buffers: list[Document]) -> int:
    """For an arena that the memory table leaves out: its buffers, 4 or fewer bytes an element by dtype."""
    from math import prod

    from fleet.model import DTYPE_BYTES

    return sum(prod(buffer["shape"]) * DTYPE_BYTES[buffer["dtype"]] for buffer in buffers)


def _figure(figure: int | None) -> str:
    return "unknown" if figure is None else f"{figure:,} B"


def tokens_equal_reference(case: Case) -> Finding:
    """Fails when the walked ids do not begin with the ids expected."""
    expect = case.orders.get("expect")
    if expect is None:
        return waived("no reference tokens were given (expect)")
    if dtype := narrow_of(case.b.get("settings")):
        return waived(not_promised(dtype, _alike(expect, case.b["tokens"])))
    tokens = case.b["tokens"]
    changed = [index for index, (want, got) in enumerate(zip(expect, tokens, strict=False)) if want != got]
    if changed:
        at = changed[0]
        return failed(
            f"{len(changed)} of {len(expect)} ids differ; the first is id {at}: {tokens[at]}, not {expect[at]}"
        )
    if len(tokens) < len(expect):
        return failed(f"the reference has {len(expect)} ids; the run walked {len(tokens)}")
    whole = "all" if len(expect) == len(tokens) else f"the first {len(expect)} of"
    return passed(f"{whole} {len(tokens)} ids equal the reference")


def _alike(expect: list[int], tokens: list[int]) -> str:
    same = sum(want == got for want, got in zip(expect, tokens, strict=False))
    return f"{same:,} of {len(expect):,} ids equal the reference"


Check = Callable[[Case], Finding]

MEASURED: dict[str, Check] = {
    "same_inputs": same_inputs,
    "run_agrees_with_itself": run_agrees_with_itself,
    "one_program_text": one_program_text,
    "decode_dispatched": decode_dispatched,
    "dispatches_match": dispatches_match,
    "device_switch_at_phase_boundary": device_switch_at_phase_boundary,
    "edges_match": edges_match,
    "handoff_bytes_match": handoff_bytes_match,
    "kv_content_arrived": kv_content_arrived,
    "resident_match": resident_match,
    "tokens_equal_reference": tokens_equal_reference,
    "two_physical_devices": two_physical_devices,
}
"""Plan beside run."""

PROVED: dict[str, Check] = {
    "no_stray_access": no_stray_access,
    "tokens_equal_single_device": tokens_equal_single_device,
    "handoff_is_load_bearing": handoff_is_load_bearing,
    "decode_uses_its_own_memory": decode_uses_its_own_memory,
}
"""Further, in a proof: they need other runs of the same request."""

FAST: dict[str, Check] = {"tokens_equal_strict": tokens_equal_strict}
"""Further, of a run whose arithmetic is another one: fast, or with narrow weights."""

CHECK_NAMES: tuple[str, ...] = (*MEASURED, *PROVED)
__all__ = ["CHECK_NAMES", "MEASURED", "PROVED", "judge"]
