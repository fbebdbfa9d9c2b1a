"""The fields of `kvwaybill/placements/1` as data, for tests and for whoever reads such a document."""

from __future__ import annotations

from typing import Any

from scenarios.schemas import device_id, words
from scenarios.shapes import Shape, choice, flag, integer, listing, number, record, table, text

_VERDICT = choice("admitted", "refused", "unverified")
_workers = listing(listing(device_id, least=1, most=4096), least=1, most=4096)
_time: Shape = record(
    {"seconds": number(null=True), "lower_bound": flag(), "basis": text(64, null=True), "error": number(null=True)},
    {"unpriced": words},
    null=True,
)
_reason = record({"code": text(64), "severity": choice("error", "unknown", "warning"), "message": text(100_000)})
_cards = listing(record({"sku": text(4096, null=True), "workers": integer(1)}), least=1, most=4096)
_bounds = {"bound_tokens_per_s_per_device": number(null=True), "bound_cost_per_hour": number()}
_placement = record(
    {
        "rank": integer(1),
        "prefill": _workers,
        "decode": _workers,
        "cards": record({"prefill": _cards, "decode": _cards}),
        "batch": integer(1),
        "alike": integer(1, null=True),
        "devices": integer(2),
        "staged": flag(),
        "handoff": _time,
        "ttft": _time,
        "tpot": _time,
        "tokens_per_s_per_device": number(null=True),
        "cost_per_hour": number(null=True),
        "slack_bytes": integer(-(2**63), null=True),
        "pareto": flag(),
        "broken": words,
        "proven": flag(),
        "bound_s": number(null=True),
        "why_not_first": text(100_000, null=True),
    },
    _bounds,
)
_rules = listing(choice("same-node", "same-domain", "spread"), most=3)
_devices = listing(device_id, most=1_000_000)
_some_devices = listing(device_id, most=1_000_000, null=True)


def _anything(value: Any, path: str, sink: Any) -> None:
    """What other documents describe."""


PLACEMENTS = record(
    {
        "schema": choice("kvwaybill/placements/1"),
        "verdict": _VERDICT,
        "kind": choice("pairs", "pools"),
        "objective": choice("handoff", "ttft", "throughput", "devices", "cost"),
        "inputs": _anything,
        "constraints": record(
            {
                "require": _rules,
                "prefer": _rules,
                "exclude": _devices,
                "avoid": _devices,
                "prefill": _some_devices,
                "decode": _some_devices,
                "price_per_hour": table(number()),
            }
        ),
        "search": record(
            {
                "devices": integer(1),
                "considered": integer(),
                "possible": integer(),
                "exact": flag(),
                "bound_s": number(null=True),
            },
            _bounds | {"mixtures": record({"searched": integer(), "possible": integer(1)})},
        ),
        "placements": listing(_placement, most=1024),
        "asked": record(
            {
                "prefill": device_id,
                "decode": device_id,
                "verdict": _VERDICT,
                "handoff": _time,
                "reasons": listing(_reason, most=1000),
            },
            {"better": integer(), "why_not_first": text(100_000, null=True)},
            null=True,
        ),
        "others": listing(
            record(
                {
                    "verdict": _VERDICT,
                    "codes": words,
                    "count": integer(1),
                    "prefill": _workers,
                    "decode": _workers,
                    "batch": integer(1),
                },
                {"reasons": listing(_reason, most=1000)},
            ),
            most=1000,
        ),
        "alternatives": listing(_anything, most=1000),
        "defaults": words,
        "warnings": words,
        "limits": words,
    },
    {"routing": choice("any", "nearest")},
)
"""`null` is unknown or unpriced; times are of admitted placements alone."""
