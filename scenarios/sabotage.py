"""The sabotages of a proof, and the checks that each must trip.

A check that nothing can fail proves nothing. So each sabotage is a run made by other hands (or beside a falsified
plan), names the checks that must fail under it and those that must still pass, and `prove` fails when one gets by,
or when a required check is never seen to fail.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from executor.hands import Hands
from scenarios.elsewhere_hands import AllOnOneDevice, CacheElsewhere, PrivateCopy, Theatre, WeightsFromFile
from scenarios.faulty_hands import (
    AnotherBody,
    CopyBack,
    HandoffDeleted,
    KeysForValues,
    NoDecode,
    OneCopyTooMany,
    OneDispatchElsewhere,
    OnePositionShort,
    Stale,
    StaleCache,
    StrayRead,
    UnlistedAllocation,
    WeightsMissing,
    WrongLayer,
)

Document = dict[str, Any]

BYTES = ("edges_match", "handoff_bytes_match")
SPLIT = ("one_program_text", "decode_dispatched", "device_switch_at_phase_boundary")


@dataclass(frozen=True, kw_only=True, slots=True)
class Material:
    """What some sabotages need: another prompt's cache, and the ids that an honest run chose."""

    stale: Stale
    chosen: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sabotage:
    """One fault. `hands` makes the hands that commit it; `falsify` changes the plan instead and leaves the run honest,
    `falsify_run` changes what is told of an honest run.

    `split_only` faults need two devices, and `layers` says how many the model needs for the fault to be one. What is
    `physical_only` is no row of the matrix where nothing physical is claimed.
    """

    name: str
    what: str
    must_fail: tuple[str, ...]
    must_pass: tuple[str, ...]
    split_only: bool = False
    layers: int = 1
    physical_only: bool = False
    hands: Callable[[Material], Hands] | None = None
    falsify: Callable[[Document], Document] | None = None
    falsify_run: Callable[[Document], Document] | None = None


def falsified_bytes(plan: Document) -> Document:
    """The plan with one element more on K's handoff row, its legs and edges and in the memory ledger, so that it still
    agrees with itself.
    """
    rows = [dict(row) for row in plan["waybill"]]
    row = next(r for r in rows if r["phase"] == "handoff" and r["tensor"] == "k" and r["kind"] in ("p2p", "d2d"))
    row["bytes"] += 4
    row["legs"] = [leg | {"bytes": leg["bytes"] + 4} for leg in row["legs"]]
    ends = {(leg["src"], leg["dst"], leg["kind"]) for leg in row["legs"]}
    edges = [e | {"bytes": e["bytes"] + 4} if (e["src"], e["dst"], e["kind"]) in ends else e for e in plan["edges"]]
    handoff = plan["handoff"] | {"bytes": plan["handoff"]["bytes"] + 4}
    memory = [_more_in_ledger(e, "in flight") if e["device"] in (row["src"], row["dst"]) else e for e in plan["memory"]]
    return plan | {"waybill": rows, "edges": edges, "handoff": handoff, "memory": memory}


def _more_in_ledger(entry: Document, line: str, more: int = 4) -> Document:
    """An entry of the memory table with `more` bytes on a line of its ledger and on the line's first term. Plans of
    older versions have no ledger.
    """
    ledger = [dict(held) for held in entry.get("ledger") or ()]
    for held in ledger:
        if held["line"] == line and held["bytes"] is not None:
            held["bytes"] += more
            if held.get("terms"):
                first, *others = held["terms"]
                held["terms"] = [first | {"bytes": first["bytes"] + more}, *others]
    return entry | {"ledger": ledger} if ledger else entry


def falsified_inputs(plan: Document) -> Document:
    """The plan as if it had been made for another checkpoint."""
    model = plan["inputs"]["model"] | {"digest": "0" * 64}
    return plan | {"inputs": plan["inputs"] | {"model": model}}


def falsified_memory(plan: Document) -> Document:
    """The plan with four bytes more of cache on the decode device, taken from the rounding so that the total stays."""
    device = plan["placement"]["decode"]
    memory = []
    for entry in plan["memory"]:
        if entry["device"] == device:
            resident = entry["resident"] | {"kv_cache": entry["resident"]["kv_cache"] + 4}
            rounding = max(entry["rounding_bytes"] - 4, 0)
            less = rounding - entry["rounding_bytes"]
            entry = entry | {"resident": resident, "rounding_bytes": rounding}
            entry = _more_in_ledger(_more_in_ledger(entry, "kv_cache"), "rounding", less)
        memory.append(entry)
    return plan | {"memory": memory}


def falsified_walk(run: Document) -> Document:
    """The run with one chosen id less than it walked."""
    return run | {"generated_tokens": run["generated_tokens"][:-1]}


def one_card_twice(run: Document) -> Document:
    """The run as if decode's device had been prefill's card all along, under another name."""
    first, *others = run["physical_devices"]
    card = {field: first[field] for field in ("uuid", "pci")}
    dispatches = [entry | {"uuid": first["uuid"]} for entry in run["dispatches"]]
    return run | {"physical_devices": [first, *(entry | card for entry in others)], "dispatches": dispatches}


SABOTAGES: tuple[Sabotage, ...] = (
    Sabotage(
        name="handoff deleted", what="the device-to-device copies are not made",
        must_fail=(*BYTES, "kv_content_arrived", "tokens_equal_single_device"),
        must_pass=(*SPLIT, "resident_match", "no_stray_access"), hands=lambda _: HandoffDeleted(),
    ),
    Sabotage(
        name="K and V swapped", what="the same bytes, in each other's place",
        must_fail=("kv_content_arrived",), must_pass=(*BYTES, *SPLIT, "resident_match", "no_stray_access"),
        hands=lambda _: KeysForValues(),
    ),
    Sabotage(
        name="wrong layer", layers=2, what="each layer gets its neighbour's cache",
        must_fail=("kv_content_arrived",), must_pass=(*BYTES, *SPLIT, "resident_match", "no_stray_access"),
        hands=lambda _: WrongLayer(),
    ),
    Sabotage(
        name="one position short", what="the last prompt position stays behind",
        must_fail=(*BYTES, "kv_content_arrived"), must_pass=(*SPLIT, "resident_match", "no_stray_access"),
        hands=lambda _: OnePositionShort(),
    ),
    Sabotage(
        name="one copy too many", what="one piece of K is copied twice",
        must_fail=BYTES,
        must_pass=(*SPLIT, "kv_content_arrived", "resident_match", "no_stray_access", "tokens_equal_single_device"),
        hands=lambda _: OneCopyTooMany(),
    ),
    Sabotage(
        name="stale cache", what="no copy is made, all are counted; decode finds another prompt's cache",
        must_fail=("kv_content_arrived",), must_pass=(*BYTES, *SPLIT, "resident_match", "no_stray_access"),
        hands=lambda material: StaleCache(material.stale),
    ),
    Sabotage(
        name="theatre", what="the copy is made and decode reads prefill's own array",
        must_fail=("no_stray_access", "handoff_is_load_bearing", "decode_uses_its_own_memory"),
        must_pass=(*BYTES, *SPLIT, "kv_content_arrived", "resident_match", "tokens_equal_single_device"),
        hands=lambda _: Theatre(),
    ),
    Sabotage(
        name="private copy", what="the copy is made, and decode reads another one on the heap",
        must_fail=("decode_uses_its_own_memory",),
        must_pass=(*BYTES, *SPLIT, "kv_content_arrived", "resident_match", "tokens_equal_single_device"),
        hands=lambda _: PrivateCopy(),
    ),
    Sabotage(
        name="cache elsewhere", what="decode works on a heap copy of the cache that it was handed",
        must_fail=("decode_uses_its_own_memory",),
        must_pass=(*BYTES, *SPLIT, "kv_content_arrived", "resident_match", "no_stray_access"),
        hands=lambda _: CacheElsewhere(),
    ),
    Sabotage(
        name="weights from the file", what="decode reads the checkpoint in host memory, not its own weights",
        must_fail=("decode_uses_its_own_memory",),
        must_pass=(*BYTES, *SPLIT, "kv_content_arrived", "resident_match", "no_stray_access"),
        hands=lambda _: WeightsFromFile(),
    ),
    Sabotage(
        name="stray read", split_only=True, what="decode looks once at prefill's cache and uses nothing of it",
        must_fail=("no_stray_access",),
        must_pass=(*BYTES, *SPLIT, "kv_content_arrived", "resident_match", "tokens_equal_single_device"),
        hands=lambda _: StrayRead(),
    ),
    Sabotage(
        name="one decode dispatch on the prefill device", split_only=True, what="one matmul in the middle of decode",
        must_fail=("device_switch_at_phase_boundary", "no_stray_access"),
        must_pass=(*BYTES, "kv_content_arrived", "resident_match", "tokens_equal_single_device"),
        hands=lambda material: OneDispatchElsewhere(len(material.chosen) - 1),
    ),
    Sabotage(
        name="all on one device", split_only=True, what="prefill's device does everything while the account names two",
        must_fail=("edges_match", "no_stray_access"),
        must_pass=(*SPLIT, "tokens_equal_single_device"), hands=lambda _: AllOnOneDevice(),
    ),
    Sabotage(
        name="another function body", what="decode runs a copied body with two steps exchanged",
        must_fail=("one_program_text",),
        must_pass=(*BYTES, "decode_dispatched", "kv_content_arrived", "resident_match", "tokens_equal_single_device"),
        hands=lambda _: AnotherBody(),
    ),
    Sabotage(
        name="weights missing", what="the decode device never gets wq",
        must_fail=("edges_match",), must_pass=(*SPLIT, "kv_content_arrived", "resident_match"),
        hands=lambda _: WeightsMissing(),
    ),
    Sabotage(
        name="unlisted allocation", what="4 bytes on the decode device that no order lists",
        must_fail=("resident_match",),
        must_pass=(*BYTES, *SPLIT, "kv_content_arrived", "no_stray_access", "tokens_equal_single_device"),
        hands=lambda _: UnlistedAllocation(),
    ),
    Sabotage(
        name="no decode", what="no decode pass is computed; the ids come out of a drawer",
        must_fail=("decode_dispatched",), must_pass=("kv_content_arrived", "handoff_bytes_match", "resident_match"),
        hands=lambda material: NoDecode(material.chosen),
    ),
    Sabotage(
        name="copied back", split_only=True, what="after the handoff a layer of K goes back, unordered",
        must_fail=("edges_match",), must_pass=(*SPLIT, "resident_match", "tokens_equal_single_device"),
        hands=lambda _: CopyBack(),
    ),
    Sabotage(
        name="falsified bytes", what="the plan says 4 bytes more for K, and is signed anew",
        must_fail=BYTES, must_pass=(*SPLIT, "kv_content_arrived", "resident_match", "tokens_equal_single_device"),
        falsify=falsified_bytes,
    ),
    Sabotage(
        name="falsified memory", what="the plan says 4 bytes more of cache, and is signed anew",
        must_fail=("resident_match",), must_pass=(*BYTES, *SPLIT, "kv_content_arrived", "tokens_equal_single_device"),
        falsify=falsified_memory,
    ),
    Sabotage(
        name="plan of another checkpoint", what="the plan names another model's digest, and is signed anew",
        must_fail=("same_inputs",), must_pass=(*BYTES, *SPLIT, "kv_content_arrived", "resident_match"),
        falsify=falsified_inputs,
    ),
    Sabotage(
        name="falsified run", what="the run states one chosen id less than it walked",
        must_fail=("run_agrees_with_itself",),
        must_pass=(*BYTES, *SPLIT, "kv_content_arrived", "resident_match", "tokens_equal_single_device"),
        falsify_run=falsified_walk,
    ),
    Sabotage(
        name="one card twice", what="the run lists one card under the names of both devices",
        must_fail=("two_physical_devices",), must_pass=(*BYTES, "kv_content_arrived", "tokens_equal_single_device"),
        split_only=True, physical_only=True, falsify_run=one_card_twice,
    ),
)  # fmt: skip
"""Every sabotage of `kvwaybill prove`."""
