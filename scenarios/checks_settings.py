"""What a run's settings and counters beside its rows must agree with: witnesses, threads, cache written, logits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fleet.model import DTYPE_BYTES
from scenarios.case import Case, Document
from scenarios.compute_dtype import narrow_disagrees
from scenarios.finding import Finding, failed, inconclusive, passed, waived

_FUSES_MULTIPLIES = "packed16"
"""The layout that has a fast mode."""
_LOOKS = {"arrival", "cupti"}
"""Witnesses of a copy in this machine; `import` and `receiver` are set beside a run by others."""
_EXPONENT = 0x7F800000
"""All ones there: NaN or infinite (IEEE 754 binary32)."""


def settings_disagree(case: Case) -> Iterator[str]:
    """Contradictions between a run's settings and what it reports, in words."""
    run, settings = case.b, case.b.get("settings") or {}
    yield from unseen(run)
    yield from narrow_disagrees(run)
    layout = case.orders["workload"]["layout"]
    threads = settings.get("threads")
    if threads is not None and threads != 1 and run.get("path") == "dispatch":
        yield f"settings.threads is {threads}, but path dispatch computes on one"
    if settings.get("fast") and layout != _FUSES_MULTIPLIES:
        yield f"settings.fast is true, but layout {layout} has no fast mode"
    written, wanted = run.get("cache_written_bytes"), cache_bytes(case)
    if case.proof is None and written is not None and wanted is not None and written != wanted:
        yield f"cache_written_bytes is {written:,}, its decode passes make {wanted:,}"


def unseen(run: Document) -> Iterator[str]:
    """What was seen by an observer that the run says did not look."""
    observers = (run.get("settings") or {}).get("observers")
    if observers is None:
        return
    parts = [part for row in run["waybill"] for part in (row, *(row.get("legs") or ()))]
    seen = {part.get("witness") for part in parts} & _LOOKS
    if "arrival" not in observers:
        told = [f"witness {name}" for name in sorted(seen)]
        told += ["digests of K and V"] if run.get("arrivals") else []
        told += ["cache_written_bytes"] if run.get("cache_written_bytes") is not None else []
        if told:
            yield f"settings.observers are {_list(observers)}, but there is {', '.join(told)}"
    if "residency" not in observers and any(entry["high_water_bytes"] is not None for entry in run["resident"]):
        yield f"settings.observers are {_list(observers)}, but there are high-water marks"


def _list(names: list[str]) -> str:
    return ", ".join(names) or "none"


def cache_bytes(case: Case) -> int | None:
    """K and V of the positions that decode walked: 2 * L * passes * KD elements, from the shape of its own buffers.

    None where the orders list no cache of decode, or one that is not laid out as [layer][position][width].
    """
    for arena in case.orders["arenas"]:
        for buffer in arena["buffers"]:
            if buffer["name"] == "kv/decode/k" and len(buffer["shape"]) == 3:
                layers, _, width = buffer["shape"]
                return int(2 * layers * case.b["passes"]["decode"] * width * DTYPE_BYTES[buffer["dtype"]])
    return None


def not_finite(run: Document) -> int:
    """How many of the largest logits are NaN or infinite: an id chosen from such says nothing."""
    return sum(int(bits, 16) & _EXPONENT == _EXPONENT for bits in run["logits_top1_bits"])


def means_nothing(run: Document) -> Finding | None:
    """Inconclusive where logits are no numbers: equal bytes prove no equal tokens then. None otherwise."""
    count, all_of_them = not_finite(run), len(run["logits_top1_bits"])
    if not count:
        return None
    return inconclusive(f"{count:,} of {all_of_them:,} top logits are no finite numbers: the ids chosen mean nothing")


# ---- two runs


def settings_unchanged(case: Case) -> Finding:
    """Tells which settings differ between two runs, backend and path too. Bytes and ids decide: it never fails."""
    first, second = (_settings_of(document) for document in (case.a, case.b))
    if first is None or second is None:
        return waived("concerns two runs that say how they were made")
    differ = [
        f"{name} {_shown(first.get(name))} -> {_shown(second.get(name))}"
        for name in dict.fromkeys((*first, *second))
        if first.get(name) != second.get(name)
    ]
    if differ:
        return inconclusive(f"other settings: {'; '.join(differ)}", required=False)
    return passed("the same backend, path and settings")


def _settings_of(document: Document) -> dict[str, Any] | None:
    if not str(document["schema"]).startswith("kvwaybill/run/") or document.get("settings") is None:
        return None
    told: dict[str, Any] = {name: document.get(name) for name in ("backend", "path", "tier")}
    told.update(document["settings"])
    return told


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return _list([str(each) for each in value])
    return "unstated" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def kv_content_unchanged(case: Case) -> Finding:
    """Fails when K or V of a layer, or the count of bytes that decode wrote, is another in the second run."""
    if "arrivals" not in case.a or "arrivals" not in case.b:
        return waived("plans have no content")
    first, second = (_digests(document) for document in (case.a, case.b))
    if not first or not second:
        return inconclusive("not both runs have digests of K and V", required=False)
    differ = [key for key in dict.fromkeys((*first, *second)) if first.get(key) != second.get(key)]
    if differ:
        tensor, layer = differ[0]
        return failed(
            f"{len(differ)} of {len(first)} pairs of tensor and layer differ, the first is {tensor} of {layer}"
        )
    written = [document.get("cache_written_bytes") for document in (case.a, case.b)]
    if None not in written and written[0] != written[1]:
        return failed(f"decode wrote {written[0]:,} B of its cache -> {written[1]:,} B")
    return passed(f"{len(first)} digests of K and V are the same")


def _digests(document: Document) -> dict[tuple[str, int], tuple[str | None, str | None]]:
    return {
        (entry["tensor"], entry["layer"]): (entry["digest_src"], entry["digest_dst"])
        for entry in document.get("arrivals") or ()
    }
