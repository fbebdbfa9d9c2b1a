"""What a run was: plain values, and the contract's **run** document made from them.

The runner adds what the executor cannot know: `plan_id`, `text`, `text_hex`, `limits`, `comparison`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from executor.instance import Entry
from executor.ledger import leg_kind, row_kind
from executor.observers.arrival import Digest, LegKey

RUN_SCHEMA = "kvwaybill/run/1"
_WITNESSED_PHASES = ("stage", "handoff")


@dataclass(frozen=True, kw_only=True, slots=True)
class StrayReport:
    """Whether a request touched an arena that was no party to the step: `accesses` 0, or 1 (the first one ends it)."""

    accesses: int
    detail: str
    signal: int | None = None
    phase: str | None = None
    order: int | None = None
    step: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFacts:
    """One request. Bytes are the ledger's; `observed` is the witness's, None when no witness looked.

    `cache_written` is what the witness saw decode write into its own cache, bytes of positions P and later.
    `driver_seen` is what the driver's witness saw, (bytes, copies) by leg, of the devices `far` whose memory no other
    witness can look at; None when it did not look. `driver` is its account in full.
    `spans`: when each order was carried out, ns of the host's clock; no part of equality.
    `waybill` and `edges` are rows of the contract, still without the witness's figures. `stray` is None when the
    request was not isolated, `arrivals` when nobody looked. `logits_top1_bits`: one f32 pattern a pass with logits.
    """

    backend: str
    tier: Literal["emulated", "on-device"]
    physical_devices: tuple[dict[str, Any], ...]
    tokens: tuple[int, ...]
    generated_tokens: tuple[int, ...]
    n_prompt_tokens: int
    device_kinds: Mapping[str, str]
    stopped: Literal["steps", "bos"]
    passes: Mapping[str, int]
    dispatches: tuple[dict[str, Any], ...]
    program: Mapping[str, tuple[Entry, ...]]
    logits_top1_bits: tuple[int, ...]
    waybill: tuple[dict[str, Any], ...]
    edges: tuple[dict[str, Any], ...]
    observed: Mapping[LegKey, int] | None
    arrivals: tuple[Digest, ...] | None
    resident: Mapping[str, int]
    cache_written: int | None
    stray: StrayReport | None
    rates: Mapping[str, float | None]
    settings: Mapping[str, Any]
    path: str = "dispatch"
    driver_seen: Mapping[LegKey, tuple[int, int]] | None = None
    far: frozenset[str] = frozenset()
    driver: Mapping[str, Any] | None = None
    spans: tuple[Mapping[str, Any], ...] = field(default=(), compare=False)


def run_document(facts: RunFacts, *, plan_id: str | None = None) -> dict[str, Any]:
    """The contract's **run**, but for `text`, `text_hex`, `limits` and `comparison`."""
    return {
        "schema": RUN_SCHEMA,
        "plan_id": plan_id,
        "backend": facts.backend,
        "path": facts.path,
        "tier": facts.tier,
        "physical_devices": [dict(device) for device in facts.physical_devices],
        "tokens": list(facts.tokens),
        "generated_tokens": list(facts.generated_tokens),
        "n_prompt_tokens": facts.n_prompt_tokens,
        "stopped": facts.stopped,
        "passes": dict(facts.passes),
        "dispatches": [dict(run) for run in facts.dispatches],
        "program": {phase: [_operation(entry) for entry in entries] for phase, entries in facts.program.items()},
        "logits_top1_bits": [f"{bits:08x}" for bits in facts.logits_top1_bits],
        "waybill": witnessed_rows(facts),
        "edges": [dict(edge) for edge in facts.edges],
        "arrivals": None
        if facts.arrivals is None
        else [
            {"tensor": d.tensor, "layer": d.layer, "digest_src": d.digest_src, "digest_dst": d.digest_dst}
            for d in facts.arrivals
        ],
        "resident": [{"device": name, "high_water_bytes": nbytes} for name, nbytes in facts.resident.items()],
        "cache_written_bytes": facts.cache_written,
        "stray": None if facts.stray is None else _stray(facts.stray),
        "rates": dict(facts.rates),
        **({"spans": [dict(span) for span in facts.spans]} if facts.spans else {}),
        "settings": dict(facts.settings),
        **({} if facts.driver is None else {"driver": dict(facts.driver)}),
    }


def _operation(entry: Entry) -> dict[str, Any]:
    op, layer, tensor, shape = entry
    return {"op": op, "layer": layer, "tensor": tensor, "shape": list(shape)}


def _stray(report: StrayReport) -> dict[str, Any]:
    document: dict[str, Any] = {"accesses": report.accesses, "detail": report.detail}
    if report.accesses:
        document |= {"signal": report.signal, "phase": report.phase, "order": report.order, "step": report.step}
    return document


def witnessed_rows(facts: RunFacts) -> list[dict[str, Any]]:
    """The ledger's rows with the witness's bytes beside each leg and, from the leg that arrives, beside the row.

    What a witness saw although no copy was counted is a row of its own, with 0 bytes and copies.
    """
    seen = _Seen(facts)
    rows = [seen.row(row) for row in facts.waybill]
    kinds = facts.device_kinds
    for (phase, tensor, src, dst, leg_src, leg_dst), figures in seen.left():
        leg = {"src": leg_src, "dst": leg_dst, "kind": leg_kind(kinds, leg_src, leg_dst), "link": None}
        row: dict[str, Any] = {"phase": phase, "tensor": tensor, "src": src, "dst": dst}
        row |= {
            "kind": row_kind(kinds, src, dst),
            "legs": [leg | {"bytes": 0, "copies": 0} | figures],
            "payload_bytes": 0,
            "bytes": 0,
            "copies": 0,
        }
        rows.append(row | figures)
    return rows


class _Seen:
    """What the witnesses saw, taken leg by leg: the driver's own for legs that end on a device out of reach."""

    def __init__(self, facts: RunFacts) -> None:
        self._far = facts.far
        self._arrived = None if facts.observed is None else dict(facts.observed)
        self._driver = None if facts.driver_seen is None else dict(facts.driver_seen)

    def row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """One row of the ledger with what was seen of it."""
        legs, arrived = [], _figures(None)
        for leg in row["legs"]:
            figures = self._leg((row["phase"], row["tensor"], row["src"], row["dst"], leg["src"], leg["dst"]))
            legs.append(leg | figures)
            if leg["dst"] == row["dst"]:
                arrived = figures
        return {**row, "legs": legs} | arrived

    def _leg(self, key: LegKey) -> dict[str, Any]:
        phase, (src, dst) = key[0], key[4:]
        if self._driver is not None and {src, dst} & self._far:
            return _by_driver(self._driver.pop(key, (0, 0)))
        if self._arrived is not None and phase in _WITNESSED_PHASES and dst not in self._far:
            return _figures(self._arrived.pop(key, 0))
        return _figures(None)

    def left(self) -> Iterator[tuple[LegKey, dict[str, Any]]]:
        """What was seen and belongs to no row."""
        driver = self._driver or {}
        for key, nbytes in (self._arrived or {}).items():
            if nbytes and key not in driver and not (self._driver is not None and set(key[4:]) & self._far):
                yield key, _figures(nbytes)
        for key, figures in driver.items():
            yield key, _by_driver(figures)


def _figures(nbytes: int | None) -> dict[str, Any]:
    """The arrival witness's figures; it cannot see repeats, so it counts no copies."""
    return {"observed_bytes": nbytes, "observed_copies": None, "witness": "none" if nbytes is None else "arrival"}


def _by_driver(figures: tuple[int, int]) -> dict[str, Any]:
    return {"observed_bytes": figures[0], "observed_copies": figures[1], "witness": "cupti"}
