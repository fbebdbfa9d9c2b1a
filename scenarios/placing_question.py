"""`kvwaybill place`: words of the command line -> a question of the planner, and the question -> its document."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from fleet.errors import DescriptionError, Fault
from fleet.machine import Fleet
from fleet.yaml_source import nearest, printable
from planner.place.candidate import OBJECTIVES, Objective
from planner.place.constraints import COMMAND_LINE, RULES, Constraints, Rule, named_devices
from planner.place.pairs import Question
from planner.place.pools import PoolQuestion
from scenarios.wanted import Prepared, Wanted, prepare, wanted_of

MOST_COUNT = 1024
"""Workers, ranks and sequences of one option, and candidates that are printed."""
MOST_SEQUENCES = 2**20
_RANGE = re.compile(r"([0-9]{1,7})-([0-9]{1,7})")
_POOL = ("prefill_workers", "decode_workers", "prefill_tp", "decode_tp", "batches", "max_devices", "routing")


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What the options of `place` say beside those of `admit`; None or empty = not given."""

    objective: Sequence[str] = ()
    require: Sequence[str] = ()
    prefer: Sequence[str] = ()
    exclude: Sequence[str] = ()
    avoid: Sequence[str] = ()
    prefill: str | None = None
    decode: str | None = None
    prices: Sequence[str] = ()
    prefill_workers: str | None = None
    decode_workers: str | None = None
    prefill_tp: str | None = None
    decode_tp: str | None = None
    batches: str | None = None
    max_devices: int | None = None
    routing: str | None = None
    top: int | None = None
    pareto: bool = False

    @property
    def most_told(self) -> int:
        """How many placements are told: five, or the whole Pareto set, where nobody says."""
        return self.top if self.top is not None else MOST_COUNT if self.pareto else 5

    @property
    def of_pools(self) -> bool:
        """Whether workers are asked for, and not a pair of devices. A single batch is a matter of pairs, too."""
        more = any(getattr(self, name) is not None for name in _POOL if name != "batches")
        return more or (self.batches is not None and not self.batches.strip().isdecimal())


@dataclass(frozen=True, kw_only=True, slots=True)
class Placing:
    """A prepared question: what to ask the planner, and the scenario's own placement, where it names one."""

    wanted: Wanted
    prepared: Prepared
    question: Question
    own: tuple[str, str] | None


def placing_of(scenario: str | None, words: dict[str, Any], asked: Asked) -> Placing:
    """Raises DescriptionError with every fault of the options; those of files are told by `prepare`."""
    faults: list[Fault] = []
    batches = _counts("batches", asked.batches, faults, ())
    if faults:
        raise DescriptionError(faults)
    wanted = wanted_of(scenario, words | ({"batch": batches[0]} if batches else {}))
    own = (wanted.prefill, wanted.decode) if wanted.prefill and wanted.decode else None
    free: dict[str, Any] = dict.fromkeys(
        ("prefill", "decode", "tp", "prefill_tp", "decode_tp", "pp", "prefill_pp", "decode_pp")
    )
    prepared = prepare(replace(wanted, **free))
    kept = tuple(told for told in prepared.defaults if not told.startswith(("prefill: ", "decode: ")))
    inputs = {name: value for name, value in prepared.inputs.items() if name != "placement"}
    prepared = replace(prepared, defaults=kept, inputs=inputs)
    return Placing(
        wanted=wanted, prepared=prepared, question=_question(prepared, asked), own=None if asked.of_pools else own
    )


def _question(prepared: Prepared, asked: Asked) -> Question:
    faults: list[Fault] = []
    fleet = prepared.ask.fleet
    objective = _objective(asked.objective, faults)
    prices = _prices(asked.prices, fleet, faults)
    if objective == "cost" and not prices:
        skus = sorted({device.sku for device in fleet.devices if device.sku})
        words = f"cost needs --price SKU=AMOUNT, an hour of a card ({', '.join(skus) or 'the fleet names no card'})"
        faults.append(_fault("--objective", words))
    constraints = _constraints(asked, fleet, faults)
    if not 1 <= asked.most_told <= MOST_COUNT:
        faults.append(_fault("--top", f"{asked.top} is out of range; use 1 to {MOST_COUNT}"))
    sizes: dict[str, Any] = {
        name: _counts(name, getattr(asked, name), faults, default)
        for name, default in (
            ("prefill_workers", (1,)), ("decode_workers", (1,)), ("prefill_tp", (1,)), ("decode_tp", (1,)),
            ("batches", (prepared.ask.request.batch,)),
        )
    }  # fmt: skip
    if asked.max_devices is not None and asked.max_devices < 2:
        faults.append(_fault("--max-devices", f"{asked.max_devices} cannot hold two workers; use 2 or more"))
    if asked.routing not in (None, "any", "nearest"):
        faults.append(_fault("--routing", f"{printable(repr(asked.routing))} is unknown; use any or nearest"))
    if faults:
        raise DescriptionError(faults)
    common: dict[str, Any] = {
        "ask": prepared.ask, "objective": objective, "constraints": constraints, "prices": prices,
        "top": asked.most_told,
    }  # fmt: skip
    if not asked.of_pools:
        return Question(**common)
    return PoolQuestion(
        **common, **sizes, most_devices=asked.max_devices, routing="nearest" if asked.routing == "nearest" else "any"
    )


def _objective(given: Sequence[str], faults: list[Fault]) -> Objective:
    """The one order that is asked for; handoff where none is."""
    known = [each for each in OBJECTIVES if each in given]
    for word in given:
        if word not in OBJECTIVES:
            words = f"{printable(repr(word))} is none of {', '.join(OBJECTIVES)}{nearest(word, list(OBJECTIVES))}"
            faults.append(_fault("--objective", words))
    if len(known) > 1:
        words = f"{' and '.join(known)} are several orders, and one is asked at a time; keep one (--pareto weighs all)"
        faults.append(_fault("--objective", words))
    return known[0] if known else "handoff"


def _fault(flag: str, words: str) -> Fault:
    return Fault(source=COMMAND_LINE, field=flag, message=words)


def _constraints(asked: Asked, fleet: Fleet, faults: list[Fault]) -> Constraints:
    rules: dict[str, tuple[Rule, ...]] = {}
    for flag, given in (("--require", asked.require), ("--prefer", asked.prefer)):
        known = tuple(dict.fromkeys(rule for rule in RULES if rule in given))
        for word in given:
            if word not in RULES:
                words = f"{printable(repr(word))} is none of {', '.join(RULES)}{nearest(word, list(RULES))}"
                faults.append(_fault(flag, words))
        rules[flag] = known
    found: dict[str, frozenset[str]] = {}
    for flag, patterns in (
        ("--exclude", asked.exclude), ("--avoid", asked.avoid),
        ("--prefill", [asked.prefill] if asked.prefill is not None else []),
        ("--decode", [asked.decode] if asked.decode is not None else []),
    ):  # fmt: skip
        try:
            found[flag] = named_devices(fleet, patterns, flag)
        except DescriptionError as error:
            faults.extend(error.faults)
    return Constraints(
        required=rules["--require"], preferred=rules["--prefer"], excluded=found.get("--exclude", frozenset()),
        avoided=found.get("--avoid", frozenset()),
        prefill=found.get("--prefill") if asked.prefill is not None else None,
        decode=found.get("--decode") if asked.decode is not None else None,
    )  # fmt: skip


def _prices(given: Sequence[str], fleet: Fleet, faults: list[Fault]) -> Mapping[str, Fraction]:
    """`SKU=AMOUNT` an hour, decimal; the cards must be the fleet's."""
    skus = sorted({device.sku for device in fleet.devices if device.sku})
    prices: dict[str, Fraction] = {}
    for text in given:
        sku, equals, amount = text.partition("=")
        if not equals or not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", amount):
            faults.append(_fault("--price", f"{printable(repr(text))} is no price; write e.g. h100-sxm-80=2.50"))
        elif sku not in skus:
            told = f"{printable(repr(sku))} is no card of fleet {fleet.name}{nearest(sku, skus)}"
            faults.append(_fault("--price", f"{told}; it has {', '.join(skus) or 'none that is named'}"))
        elif sku in prices:
            faults.append(_fault("--price", f"{sku} stands twice; keep one"))
        else:
            prices[sku] = Fraction(amount)
    return prices


def _counts(name: str, text: str | None, faults: list[Fault], default: tuple[int, ...]) -> tuple[int, ...]:
    """`4`, `1,2,4` or `1-8` as numbers, sorted, each once."""
    if text is None:
        return default
    flag = "--batch" if name == "batches" else f"--{name.replace('_', '-')}"
    most = MOST_SEQUENCES if name == "batches" else MOST_COUNT
    found: set[int] = set()
    for part in text.split(","):
        run = _RANGE.fullmatch(part.strip())
        first, last = (run[1], run[2]) if run else (part.strip(), part.strip())
        if not re.fullmatch(r"[0-9]{1,7}", first) or not 1 <= int(first) <= int(last) <= most:
            words = f"{printable(repr(part))} is no number from 1 to {most:,}, nor a range; write 4, 1,2,4 or 1-8"
            faults.append(_fault(flag, words))
            return default
        if int(last) - int(first) >= MOST_COUNT:
            faults.append(_fault(flag, f"{part.strip()} is a range of more than {MOST_COUNT:,}; write powers: 1,2,4"))
            return default
        found |= set(range(int(first), int(last) + 1))
    return tuple(sorted(found))
