"""The document `kvwaybill/placements/1`: the ranked placements, why each lower one lost, and what was not admitted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from fleet.errors import DescriptionError
from planner.admit import Admission
from planner.fixes import counterfactuals
from planner.place.candidate import Candidate, pareto, rank_key, value_of
from planner.place.lost import why_lost
from planner.place.pairs import Answer, PairSearch, Question
from planner.place.pools import PoolQuestion, PoolSearch
from planner.plan import reason_document
from planner.times import Time
from scenarios.limits import plan_limits
from scenarios.placing_question import Placing

SCHEMA = "kvwaybill/placements/1"
Document = dict[str, Any]
_LIMITS = {
    "pairs": (
        "alike: pairs that a proven swap of like parts of the fleet turns into the one that is named.",
        "tokens a second and device: both phases busy all the time, nothing waits: an upper bound, unscored.",
    ),
    "pools": (
        "A pool's handoff is that of its worst pair of workers, alone on its way; of each size and kind of card the"
        " pools are told that no other one beats, and those of unlike cards in a phase that none of the size beats."
        " Where proven is false, another may lie between bound and figure.",
        "tokens a second and device: every worker busy all the time, nothing waits: an upper bound, unscored.",
    ),
}
MOST_OTHERS = 5
"""Kinds of what is not admitted that are shown with their reasons."""


def place_document(placing: Placing, *, front: bool = False) -> Document:
    """Searches and writes down. `front`: the Pareto set in place of the first few."""
    question = placing.question
    pools = isinstance(question, PoolQuestion)
    search: PairSearch | PoolSearch = (
        PoolSearch(question) if isinstance(question, PoolQuestion) else PairSearch(question)
    )
    answer = search.run()
    if isinstance(search, PoolSearch):
        answer = search.timed(answer)
    on_front = pareto(answer.admitted)
    ranks = [at for at, kept in enumerate(on_front) if kept] if front else range(len(answer.admitted))
    shown = [(at, search.shown(answer.admitted[at])) for at in list(ranks)[: question.top]]
    document: Document = {
        "schema": SCHEMA,
        "verdict": answer.verdict,
        "kind": "pools" if pools else "pairs",
        **({"routing": question.routing} if isinstance(question, PoolQuestion) else {}),
        "objective": question.objective,
        "inputs": placing.prepared.inputs,
        "constraints": _constraints(answer),
        "search": {
            "devices": len(question.ask.fleet.devices), "considered": answer.considered, "possible": answer.possible,
            "exact": answer.exact, **_bound(answer, question.objective), **_mixtures(answer),
        },
        "placements": [
            _placement(at, each, on_front[at], _lost(answer, at, each), question) for at, each in shown
        ],
        "asked": _asked(placing, search, answer) if isinstance(search, PairSearch) else None,
        "others": _others(search, answer.others),
        "alternatives": [] if answer.admitted else _alternatives(search, answer.others),
    }  # fmt: skip
    fleet, model = placing.prepared.ask.fleet, placing.prepared.ask.model
    document["defaults"] = list(placing.prepared.defaults)
    document["warnings"] = [*fleet.warnings, *model.warnings, *placing.prepared.warnings, *_unpriced(answer)]
    attention = None if model.unknown else question.ask.request.attention
    plain = model.unknown or model.is_plain_cache
    document["limits"] = [*plan_limits(attention, other_caches=not plain, workers=pools), *_LIMITS[document["kind"]]]
    return document


def _lost(answer: Answer, at: int, each: Candidate) -> str | None:
    return why_lost(answer.admitted[0], each, answer.question.objective) if at else None


def _constraints(answer: Answer) -> Document:
    constraints = answer.question.constraints
    return {
        "require": list(constraints.required),
        "prefer": list(constraints.preferred),
        "exclude": sorted(constraints.excluded),
        "avoid": sorted(constraints.avoided),
        "prefill": None if constraints.prefill is None else sorted(constraints.prefill),
        "decode": None if constraints.decode is None else sorted(constraints.decode),
        "price_per_hour": {sku: float(price) for sku, price in sorted(answer.question.prices.items())},
    }


def _bound(of: Answer | Candidate, objective: str) -> Document:
    """Seconds; by throughput, tokens a second and device; an hour's cost where another may cost less."""
    is_rate = objective == "throughput"
    told: Document = {"bound_s": None if is_rate else _seconds(of.bound)}
    told |= {"bound_tokens_per_s_per_device": _seconds(of.bound)} if is_rate else {}
    return told | ({} if of.cost_bound is None else {"bound_cost_per_hour": float(of.cost_bound)})


def _mixtures(answer: Answer) -> Document:
    """Of fleets of unlike cards: how many mixtures of them there are in a phase, and how many were looked at."""
    if answer.mixtures is None:
        return {}
    searched, possible = answer.mixtures
    return {"mixtures": {"searched": searched, "possible": possible}}


def _cards(each: Candidate, skus: Mapping[str, str | None]) -> Document:
    """How many workers of each card a phase has."""
    return {
        phase: [{"sku": sku, "workers": count} for sku, count in Counter(skus[worker[0]] for worker in side).items()]
        for phase, side in (("prefill", each.prefill), ("decode", each.decode))
    }


def _placement(at: int, each: Candidate, on_front: bool, lost: str | None, question: Question) -> Document:
    figures = each.figures
    skus = {device.id: device.sku for device in question.ask.fleet.devices}
    return {
        "rank": at + 1,
        "prefill": [list(worker) for worker in each.prefill],
        "decode": [list(worker) for worker in each.decode],
        "cards": _cards(each, skus),
        "batch": each.batch,
        "alike": each.alike,
        "devices": figures.devices,
        "staged": each.staged,
        "handoff": _time(figures.handoff),
        "ttft": _time(figures.ttft),
        "tpot": _time(figures.tpot),
        "tokens_per_s_per_device": None if figures.throughput is None else float(figures.throughput),
        "cost_per_hour": None if figures.cost is None else float(figures.cost),
        "slack_bytes": figures.slack_bytes,
        "pareto": on_front,
        "broken": list(each.broken),
        "proven": each.proven,
        **_bound(each, question.objective),
        "why_not_first": lost,
    }


def _time(time: Time | None) -> Document | None:
    """A time with its standing; null where there is none of the kind. `seconds` null = unpriced."""
    if time is None:
        return None
    return {
        "seconds": _seconds(time.seconds), "lower_bound": time.lower_bound, "basis": time.basis,
        "error": None if time.error is None else float(time.error),
        **({"unpriced": list(time.unpriced)} if time.unpriced else {}),
    }  # fmt: skip


def _seconds(value: Fraction | None) -> float | None:
    return None if value is None else float(value)


def _asked(placing: Placing, search: PairSearch, answer: Answer) -> Document | None:
    """The scenario's own placement beside the best: its verdict, its time, how many pairs go before it."""
    if placing.own is None or placing.own[0] == placing.own[1] or any("," in name for name in placing.own):
        return None
    admission = search.screen.admission(*placing.own)
    found = search.screen.pair(*placing.own)
    document: Document = {
        "prefill": placing.own[0], "decode": placing.own[1], "verdict": admission.verdict,
        "handoff": _time(found.handoff), "reasons": [reason_document(reason) for reason in admission.reasons],
    }  # fmt: skip
    number = search.classes.symmetry.number
    key = search.classes.symmetry.pair_class(number[placing.own[0]], number[placing.own[1]])
    objective = placing.question.objective
    for at, each in enumerate(answer.admitted):
        if search.classes.symmetry.pair_class(number[each.devices[0]], number[each.devices[1]]) == key:
            before = [other for other in answer.admitted if rank_key(other, objective) < rank_key(each, objective)]
            document["better"] = sum(other.alike or 0 for other in before)
            document["why_not_first"] = why_lost(answer.admitted[0], each, objective) if at and before else None
    return document


def _others(search: PairSearch | PoolSearch, others: Sequence[Candidate]) -> list[Document]:
    """What is not admitted, by the codes of its reasons: how many, and the one with the most room with its reasons."""
    kinds: dict[tuple[str, tuple[str, ...]], list[Candidate]] = {}
    for each in others:
        kinds.setdefault((each.verdict, each.codes), []).append(each)
    out: list[Document] = []
    for (verdict, codes), held in kinds.items():
        best = _nearest(held)
        document: Document = {
            "verdict": verdict, "codes": list(codes), "count": sum(each.alike or 1 for each in held),
            "prefill": [list(worker) for worker in best.prefill], "decode": [list(worker) for worker in best.decode],
            "batch": best.batch,
        }  # fmt: skip
        if len(out) < MOST_OTHERS:
            document["reasons"] = [reason_document(reason) for reason in search.admission(best).reasons]
        out.append(document)
    return out


def _nearest(held: Sequence[Candidate]) -> Candidate:
    """The candidate that lacks least; of those, the first."""
    return max(held, key=lambda each: -(2**63) if each.figures.slack_bytes is None else each.figures.slack_bytes)


def _alternatives(search: PairSearch | PoolSearch, others: Sequence[Candidate]) -> list[Document]:
    """Where nothing is admitted: the changes that would admit the refused candidate which lacks least.

    Other devices are no change here: all of them were looked at. Workers of more ranks are told in the options of
    `place`, and only where it finds room for them.
    """
    refused = [each for each in others if each.verdict == "refused"]
    if not refused:
        return []
    nearest = _nearest(refused)
    admission: Admission = search.admission(nearest)
    _, changes, _ = counterfactuals(admission)
    told = [change for change in changes if change.get("flag") not in ("--prefill", "--decode")]
    told += [change for change in map(_as_ranks, changes) if change and _found(search, nearest, change)]
    told.sort(key=lambda change: "field" in change)  # what the fleet would have to be comes last
    pins = {"prefill": admission.ask.placement.prefill, "decode": admission.ask.placement.decode}
    return [{**change, "placement": pins} for change in told]


def _as_ranks(change: Document) -> Document | None:
    """A change to workers of several devices as degrees; None for any other change."""
    parts = [change, *change.get("and", [])]
    if not all(part.get("flag") in ("--prefill", "--decode") for part in parts):
        return None
    if all("," not in part["to"] for part in parts):
        return None
    degrees = [
        {"flag": f"{part['flag']}-tp", "from": len(part["from"].split(",")), "to": len(part["to"].split(","))}
        for part in sorted(parts, key=lambda part: part["flag"], reverse=True)
    ]
    return degrees[0] | ({"and": degrees[1:]} if len(degrees) > 1 else {})


def _found(search: PairSearch | PoolSearch, nearest: Candidate, change: Document) -> bool:
    """Whether `place` admits a pool of one worker each with these degrees."""
    to = {part["flag"]: part["to"] for part in (change, *change.get("and", []))}
    question = search.question
    ranks = {"--prefill-tp": len(nearest.prefill[0]), "--decode-tp": len(nearest.decode[0])} | to
    asked = PoolQuestion(
        ask=question.ask, constraints=question.constraints, batches=(nearest.batch,),
        prefill_tp=(ranks["--prefill-tp"],), decode_tp=(ranks["--decode-tp"],),
    )  # fmt: skip
    try:
        return bool(PoolSearch(asked).run().admitted)
    except DescriptionError:  # more devices than the rules leave, or ranks that the model does not divide by
        return False


def _unpriced(answer: Answer) -> list[str]:
    """A warning where the objective decides nothing."""
    objective = answer.question.objective
    if not answer.admitted or any(value_of(each, objective) is not None for each in answer.admitted):
        return []
    without = sorted(
        {d.sku or "a card without a name" for d in answer.question.ask.fleet.devices} - {*answer.question.prices}
    )
    if objective == "cost" and without:
        none = ", ".join(without)
        return [f"no placement has a price: --price names no {none}; the order is that of the figures after it"]
    return [f"no placement has a priced {objective}: the order is that of the figures after it, and of the fleet"]
