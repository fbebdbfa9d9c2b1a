"""Single changes of a request that would mend a refusal: each dimension gives the smallest one, found exactly.

Counts grow what a plan holds, so the largest admitted one is found by bisection; shares by a closed form; types,
devices and degrees one after another in a stated order. Nothing is told from here: `planner.fixes` admits each again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from fleet.errors import DescriptionError
from fleet.model import DTYPE_BYTES, PRICED_DTYPES
from fleet.placement import PHASES
from planner.admit import Admission, Ask, admit, cache_bytes, terms_of
from planner.ledger_bounds import least_utilization
from planner.request import with_passes
from planner.shared_memory import shared_memories

STEPS_OF_SHARE = 10_000
"""A suggested utilization has four decimals."""
_BY_PREFERENCE = ("decode", "prefill")
ADMITTED: Goal = frozenset({"admitted"})
SHORT = ("EXCEEDS_BUDGET", "EXCEEDS_FREE", "EXCEEDS_CAPACITY", "EXCEEDS_SHARED_MEMORY")
"""Codes of reasons that say that bytes are missing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One change and the request that results. `document` is {flag | field, from, to} for the plan.

    `leaves`: the verdict of that request; `unverified` where nothing is short any more and a figure stays unknown that
    no field could state.
    """

    document: dict[str, Any]
    ask: Ask
    leaves: str = "admitted"


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """Changes of one dimension, the smallest first. `searched` says in words where not all were looked at; `more`
    are mended too, and not told.
    """

    changes: tuple[Change, ...] = ()
    searched: str = ""
    more: int = 0

    def __iter__(self) -> Iterator[Change]:
        return iter(self.changes)


Source = Callable[[Admission], Iterable[Change]]
Goal = frozenset[str]
"""Verdicts that mend a refusal."""


def parts_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The changes that belong together in one document, each by itself."""
    return [{name: value for name, value in document.items() if name != "and"}, *document.get("and", [])]


def joined(changes: list[dict[str, Any]]) -> dict[str, Any]:
    """Changes that belong together as one: the first, and the others under `and`."""
    return changes[0] if len(changes) == 1 else {**changes[0], "and": changes[1:]}


def is_admitted(ask: Ask) -> bool:
    """The verdict; a request that cannot be meant (a type that a layout does not hold) is not admitted."""
    return is_mended(ask, ADMITTED)


def is_mended(ask: Ask, goal: Goal) -> bool:
    """Whether a request has one of these verdicts; one that cannot be meant has none."""
    try:
        return admit(ask).verdict in goal
    except DescriptionError:
        return False


def accepted(admission: Admission) -> Goal:
    """What mends a refusal: an admission. Beside an unknown, which no change makes known, that nothing is short."""
    return ADMITTED | {"unverified"} if is_beside_unknown(admission) else ADMITTED


def is_beside_unknown(admission: Admission) -> bool:
    """Whether a figure that the verdict needs is unknown; a refusal may tell only what is short whatever it is."""
    fleet, names = admission.ask.fleet, {*admission.ask.placement.devices}
    held = (d for d in fleet.devices if d.id in names)
    return any(r.severity == "unknown" for r in admission.reasons) or any(d.in_use is None for d in held)


def utilization(admission: Admission) -> Iterator[Change]:
    """The smallest share (four decimals) that holds every device and every memory that several lie in."""
    least = _least_share(admission)
    if least is None:
        return
    share = min(Fraction(-(-least.numerator * STEPS_OF_SHARE // least.denominator), STEPS_OF_SHARE), Fraction(1))
    document = {"flag": "--utilization", "from": decimal(admission.utilization), "to": decimal(share)}
    yield Change(document=document, ask=replace(admission.ask, utilization=share))


def _least_share(admission: Admission) -> Fraction | None:
    """None where no device is short, or one would be at any share."""
    ask, prediction = admission.ask, admission.prediction
    short = {reason.device for reason in admission.reasons if reason.code in SHORT}
    if prediction is None or not short:
        return None
    held = {f.arena: (f.total_bytes, cache_bytes(f)) for f in prediction.footprints}
    wanted = [(name, *held[name]) for name in short if name is not None]
    for memory in shared_memories(ask.fleet, prediction.footprints):
        if memory.devices[0] in short:
            caches = sum(held[name][1] for name in memory.devices)
            wanted += [(name, memory.total_bytes, caches) for name in memory.devices]
    needed = Fraction(0)
    for name, total, cache in wanted:
        device, capacity = ask.fleet.device(name), admission.budgets[name].capacity_bytes
        share = None if capacity is None else least_utilization(capacity, total, cache, terms_of(ask, device))
        if share is None:
            return None
        needed = max(needed, share)
    return needed or None


def decimal(share: Fraction) -> str:
    """A share as a flag has it: four decimals at most."""
    return f"{float(share):.4f}".rstrip("0").rstrip(".")


def context(admission: Admission) -> Iterator[Change]:
    """The most cache positions that fit; passes that would not fit into them go down with them."""
    ask, workload = admission.ask, admission.workload
    if workload is None or ask.request.positions is None:
        return
    least = min(workload.passes, workload.prompt_tokens + 1)

    def with_positions(count: int) -> Ask:
        request = replace(ask.request, positions=count)
        return replace(ask, request=with_passes(request, workload, min(workload.passes, count))[0])

    best = _largest(least, workload.positions - 1, with_positions, accepted(admission))
    if best is None:
        return
    changes: list[dict[str, Any]] = [{"flag": "--positions", "from": workload.positions, "to": best}]
    if best < workload.passes:
        _, flag, before, after = with_passes(ask.request, workload, best)
        changes.append({"flag": flag, "from": before, "to": after})
        yield Change(document=joined(changes), ask=with_positions(best))
    else:
        yield Change(document=changes[0], ask=replace(ask, request=replace(ask.request, positions=best)))


def sequences(admission: Admission) -> Iterator[Change]:
    """The most sequences at once."""
    ask, workload = admission.ask, admission.workload
    if workload is None or workload.batch == 1:
        return
    best = _largest(1, workload.batch - 1, lambda count: with_batch(ask, count), accepted(admission))
    if best is not None:
        yield Change(document={"flag": "--batch", "from": workload.batch, "to": best}, ask=with_batch(ask, best))


def with_batch(ask: Ask, count: int) -> Ask:
    """The same request for so many sequences."""
    return replace(ask, request=replace(ask.request, batch=count))


def passes(admission: Admission) -> Iterator[Change]:
    """The most passes that fit and still hand over."""
    ask, workload = admission.ask, admission.workload
    if workload is None or workload.decode_passes < 2:
        return
    if ask.request.positions is not None:
        return  # the cache is sized by --positions; fewer passes alone change nothing

    def with_count(count: int) -> Ask:
        return replace(ask, request=with_passes(ask.request, workload, count)[0])

    best = _largest(workload.prompt_tokens + 1, workload.passes - 1, with_count, accepted(admission))
    if best is not None:
        request, flag, before, after = with_passes(ask.request, workload, best)
        yield Change(document={"flag": flag, "from": before, "to": after}, ask=replace(ask, request=request))


def prompt(admission: Admission) -> Iterator[Change]:
    """The longest prompt with as many new tokens; where it is a count, and the cache is sized by it."""
    ask, workload = admission.ask, admission.workload
    request = ask.request
    if workload is None or request.prompt_tokens is None or request.prompt_ids is not None:
        return
    if request.new_tokens is None or request.positions is not None:
        return

    def with_prompt(count: int) -> Ask:
        return replace(ask, request=replace(request, prompt_tokens=count))

    best = _largest(max(1, request.prefix_hit), workload.prompt_tokens - 1, with_prompt, accepted(admission))
    if best is not None:
        document = {"flag": "--prompt-tokens", "from": workload.prompt_tokens, "to": best}
        yield Change(document=document, ask=with_prompt(best))


def _largest(low: int, high: int, ask_for: Callable[[int], Ask], goal: Goal) -> int | None:
    """The largest value in [low, high] that mends; memory only grows with it, so bisection is exact."""
    if low > high or not is_mended(ask_for(low), goal):
        return None
    return low + bisect_left(range(low + 1, high + 1), True, key=lambda value: not is_mended(ask_for(value), goal))


def cache_type(admission: Admission) -> Iterator[Change]:
    """The widest narrower type of the cache that is admitted."""
    workload = admission.workload
    yield from _types(admission, "kv_dtype", None if workload is None else workload.kv_dtype)


def weights_type(admission: Admission) -> Iterator[Change]:
    """The widest narrower type of the weights that is admitted."""
    workload = admission.workload
    yield from _types(admission, "weights_dtype", None if workload is None else workload.weights_dtype)


def _types(admission: Admission, field: str, now: str | None) -> Iterator[Change]:
    if now not in DTYPE_BYTES:
        return
    narrower = [name for name in PRICED_DTYPES if DTYPE_BYTES[name] < DTYPE_BYTES[now]]
    for name in sorted(narrower, key=lambda each: -DTYPE_BYTES[each]):
        typed: dict[str, Any] = {field: name}
        ask = replace(admission.ask, request=replace(admission.ask.request, **typed))
        if is_mended(ask, accepted(admission)):
            document = {"flag": f"--{field.replace('_', '-')}", "from": now, "to": name}
            yield Change(document=document, ask=ask)
            return


def roles(admission: Admission) -> Iterator[Change]:
    """Prefill and decode swapped; of workers only where both are divided alike."""
    ask, placed = admission.ask, admission.ask.placement
    alike = len({(placed.tensor_parallel(phase), placed.pipeline(phase)) for phase in PHASES}) == 1
    if placed.is_oracle or not alike:
        return
    swapped = replace(placed, prefill=placed.decode, decode=placed.prefill)
    flags = [
        {"flag": f"--{phase}", "from": getattr(placed, phase), "to": getattr(swapped, phase)}
        for phase in _BY_PREFERENCE
    ]
    yield Change(document=joined(flags), ask=replace(ask, placement=swapped))


def phases_short(admission: Admission) -> tuple[str, ...]:
    """The phases of which a device is short of bytes."""
    short = {reason.device for reason in admission.reasons if reason.code in SHORT}
    return tuple(phase for phase in PHASES if short & set(admission.ask.placement.ranks(phase)))


def least_of(admission: Admission) -> dict[str, tuple[str, Ask]]:
    """{dimension: (in words, the request with the least of it)} of those in which less could have been asked."""
    ask, workload = admission.ask, admission.workload
    if workload is None:
        return {}
    request, after = ask.request, workload.prompt_tokens + 1
    found: dict[str, tuple[str, Ask]] = {}
    if admission.utilization < 1:
        found["utilization"] = ("all of it", replace(ask, utilization=Fraction(1)))
    if request.positions is not None and workload.positions > min(workload.passes, after):
        count = min(workload.passes, after)
        shorter = with_passes(replace(request, positions=count), workload, count)[0]
        found["context"] = (f"a context of {count:,}", replace(ask, request=shorter))
    if workload.batch > 1:
        found["sequences"] = ("one sequence", with_batch(ask, 1))
    if request.positions is None and workload.passes > after:
        fewer = with_passes(request, workload, after)[0]
        found["new tokens"] = (f"{after:,} passes", replace(ask, request=fewer))
    if request.prompt_tokens not in (None, 1) and request.new_tokens is not None and request.positions is None:
        found["prompt"] = ("a prompt of BOS alone", replace(ask, request=replace(request, prompt_tokens=1)))
    for name, field, now in (
        ("KV", "kv_dtype", workload.kv_dtype),
        ("weights", "weights_dtype", workload.weights_dtype),
    ):
        if DTYPE_BYTES.get(now, 0) > DTYPE_BYTES["fp8"]:
            typed: dict[str, Any] = {field: "fp8"}
            found[f"{name} type"] = (f"{name} in fp8", replace(ask, request=replace(request, **typed)))
    return found


def why_refused(ask: Ask) -> str:
    """In a few words, what stands against a request."""
    try:
        answer = admit(ask)
    except DescriptionError as error:
        return error.faults[0].message
    reason = next((r for r in answer.reasons if r.severity != "warning"), None)
    if reason is None:
        return "it is admitted"
    if reason.shortfall_bytes is not None and reason.severity == "error":
        return f"{reason.device or reason.code} is short by {reason.shortfall_bytes:,} B"
    return reason.message
