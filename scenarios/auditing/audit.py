"""The audit of a log, as a document: every reading that its figures allow, rates beside links, what cannot be true."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from fleet.errors import DescriptionError
from fleet.model import Model
from scenarios.auditing import arithmetic, rates
from scenarios.auditing.models import Narrowed, model_document
from scenarios.auditing.parts import Part, Told, read_parts
from scenarios.auditing.rates import finding
from scenarios.observations import Interval, Reading
from scenarios.observations.observation import decimals, ends

Document = dict[str, Any]
MOST_SHOWN = 200
_GRAVE = ("impossible", "contradiction")


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What narrows the readings. `link` is the kind of link that somebody says it went over."""

    version: str | None = None
    model: Model | None = None
    narrowed: Narrowed = field(default_factory=Narrowed)
    link: str | None = None


def audit(path: str, asked: Asked) -> Document:
    """`kvwaybill/audit/1` of the file at `path` (`-`: stdin).

    `verdict`: `contradicted` where a figure cannot be true, or fits neither the others nor what is asked for;
    `inconclusive` where nothing could be told; else `consistent`. DescriptionError as the readers raise it.
    """
    known = rates.catalog_rates()
    if asked.link is not None and asked.link not in {kind for kind, _, _ in known.links}:
        kinds = ", ".join(kind for kind, _, _ in known.links)
        raise DescriptionError.at("command line", "--link", f"{asked.link[:40]!r} is no kind of link; there is {kinds}")
    told = read_parts(path, asked.version)
    sizes = arithmetic.descriptor_sizes(told.parts)
    pool = _pool(told.reading, asked.narrowed)
    document: Document = {"schema": "kvwaybill/audit/1", "verdict": "", "log": _log(told, asked)}
    document |= _inferred(sizes, told.parts, pool, asked.narrowed)
    document["pool"] = None if pool is None else {"bytes_per_token": decimals(pool)}
    document["rates"] = [row for part in told.parts[:MOST_SHOWN] if (row := rates.rate_document(part, known))]
    if asked.model is not None:
        source = told.reading.format
        document["model"] = model_document(asked.model, source, told.parts, sizes, pool, asked.narrowed)
    document["findings"] = _findings(document, told, sizes, asked)
    document["verdict"] = _verdict(document, sizes)
    document["limits"] = _limits(told.reading, known)
    return document


def _log(told: Told, asked: Asked) -> Document:
    reading, parts = told.reading, told.parts
    versions = {part.seen.version for part in parts} | {one.version for one in reading.observations} | {asked.version}
    return {
        "format": reading.format,
        "engine": reading.engine,
        "versions": sorted(version for version in versions if version),
        "parts": [_part(part) for part in parts[:MOST_SHOWN]],
        "n_parts": len(parts),
        "warnings": list(reading.warnings)[:MOST_SHOWN],
    }


def _part(part: Part) -> Document:
    seen = part.seen
    count = seen.transfers
    return {
        "where": part.where,
        "lines": list(seen.lines[:20]),
        "rank": seen.rank,
        "side": seen.side,
        "model": seen.model,
        "transfers": ends(count),
        "bytes": ends(seen.bytes),
        "descriptors": ends(seen.descriptors),
        "seconds": decimals(seen.seconds),
        "ranks_possible": arithmetic.rank_readings(int(count.low)) if _countable(part) and count is not None else [],
        "bytes_per_request": _requests(part),
        "bytes_per_transfer": _mean(part, seen.bytes),
        "seconds_per_transfer": _mean(part, seen.seconds),
    }


def _requests(part: Part) -> list[Document]:
    """Bytes of one request for each number of ranks, a transfer being one rank's: {ranks, requests, bytes}."""
    count, size = part.seen.transfers, part.seen.bytes
    if count is None or size is None or not _countable(part):
        return []
    return [
        {"ranks": ranks, "requests": int(count.low) // ranks, "bytes": ends(size.times(ranks / count.low))}
        for ranks in arithmetic.rank_readings(int(count.low))
    ]


def _countable(part: Part) -> bool:
    count = part.seen.transfers
    return count is not None and count.is_exact and count.low >= 1 and not part.seen.requests_unknown


def _mean(part: Part, size: Interval | None) -> list[float] | None:
    count = part.seen.transfers
    if size is None or count is None or not count.is_exact or count.low < 1:
        return None
    return [float(size.low / count.low), float(size.high / count.low)]


def _inferred(sizes: arithmetic.Sizes, parts: Sequence[Part], pool: Interval | None, narrowed: Narrowed) -> Document:
    """Sizes of a descriptor, readings of layers and blocks, and what a block may hold."""
    held: list[Document] = []
    for size in sizes.list or ():
        tokens = arithmetic.token_readings(size)
        held.append({"bytes": size, "tokens": [t for t in tokens if narrowed.block in (None, t["block_tokens"])]})
    readings = arithmetic.layer_readings(parts)
    if pool is not None and sizes.list:
        readings = [row | {"block_tokens": arithmetic.blocks_of_pool(row, sizes.list, pool)} for row in readings]
        readings = [row for row in readings if row["block_tokens"]]
    found = sizes.interval
    return {
        "descriptor_bytes": decimals(found),
        "descriptors_hold": held,
        "readings": readings,
        "regions_if_transfers_differ": arithmetic.unlike_regions(parts),
    }


def _pool(reading: Reading, narrowed: Narrowed) -> Interval | None:
    """Bytes of one token on a rank, by what the engine printed at start; None where it contradicts itself or is cut."""
    available, tokens = reading.sizing.get("available_bytes"), reading.sizing.get("pool_tokens")
    if available is None or tokens is None or tokens.low < 1 or _hybrid(reading, narrowed) is not None:
        return None
    request = reading.sizing.get("request_tokens")
    length = int(request.low) if request is not None and request.low >= 1 else None
    return arithmetic.pool_bytes(available, int(tokens.low), _block(reading, narrowed), length)


def _block(reading: Reading, narrowed: Narrowed) -> int:
    """Tokens of a block: as asked or as printed, else the largest that is usual."""
    stated = reading.sizing.get("block_tokens")
    return narrowed.block or (int(stated.high) if stated is not None else arithmetic.USUAL_BLOCK)


def _hybrid(reading: Reading, narrowed: Narrowed) -> str | None:
    """In words, how the pool's tokens and its concurrency disagree: those of a hybrid in an older version do."""
    told = [reading.sizing.get(name) for name in ("pool_tokens", "request_tokens", "max_concurrency")]
    tokens, request, turns = told
    if tokens is None or request is None or turns is None or request.low < 1:
        return None
    block = _block(reading, narrowed)
    fit = Interval(tokens.low / (request.low + block), (tokens.high + 1) / request.low)
    if turns.low <= fit.high and turns.high >= fit.low:
        return None
    middle = (turns.low + turns.high) / 2
    return (
        f"{int(tokens.low):,} tokens and {float(middle):,.2f} requests of {int(request.low):,} do not agree "
        f"({int(middle * request.low):,} tokens would): layers with state or windows share the pool, in an older "
        "version (vllm-project/vllm#40691); it is not divided by its tokens"
    )


def _findings(document: Document, told: Told, sizes: arithmetic.Sizes, asked: Asked) -> list[Document]:
    known = rates.catalog_rates()
    found = [each for part in told.parts for each in rates.rate_findings(part, known)]
    if asked.link is not None:
        found += [each for part in told.parts if (each := rates.claim_finding(part, known, asked.link)) is not None]
    for kind, line in told.named.items():
        slow = [part for part in told.parts if asked.link != kind and rates.claim_finding(part, known, kind)]
        if slow:
            words = (
                f"line {line} of the log names {kind}; {len(slow):,} of {len(told.parts):,} parts were not at its rate"
            )
            found.append(finding("NAMED_LINK", "warning", words))
    found += _size_findings(document, sizes, asked)
    if (words := _hybrid(told.reading, asked.narrowed) or "") != "":
        found.append(finding("POOL_DISAGREES", "warning", words))
    failed = sum(one.failed or 0 for one in told.reading.observations)
    if failed:
        found.append(finding("FAILED_TRANSFERS", "warning", f"{failed:,} transfers failed; their bytes are not told"))
    return found[:MOST_SHOWN]


def _size_findings(document: Document, sizes: arithmetic.Sizes, asked: Asked) -> list[Document]:
    found = []
    if sizes.apart:
        words = "; ".join(f"{where}: {size}" for where, size in sizes.apart)
        words = f"no one model and block size fits: {words}; two engines, or groups of layers with blocks of their own"
        found.append(finding("SIZES_DIFFER", "warning", words))
    elif sizes.list == () and sizes.interval is not None:
        low, high = float(sizes.interval.low), float(sizes.interval.high)
        words = f"{low:,.2f} to {high:,.2f} B a descriptor: no whole multiple of {arithmetic.STEP} B, so regions differ"
        found.append(finding("NO_ONE_SIZE", "warning", f"{words} in size, or it is no cache of heads"))
    model = document.get("model")
    sized = any(part["bytes"] and part["bytes"][1] > 0 for part in document["log"]["parts"]) or document["pool"]
    if model is not None and model["unknown"] is None and sized and not sizes.apart and not model["readings"]:
        cut = asked.narrowed
        told = [f"tp {cut.tp}" if cut.tp else "", cut.kv_dtype or "", f"blocks of {cut.block}" if cut.block else ""]
        given = ", ".join(word for word in told if word)
        words = (
            f"no cut of {model['name']}{f' with {given}' if given else ''} has these sizes: of {model['tried']:,} tried"
        )
        words += " the bytes of a block divide none; metrics of another model, or another rule"
        if model["versions_differ"]:
            words += "; or a version that groups its layers with windows, which was not read"
        severity = "warning" if model["versions_differ"] else "contradiction"
        found.append(finding("ANOTHER_MODEL", severity, words))
    return found


def _verdict(document: Document, sizes: arithmetic.Sizes) -> str:
    if any(each["severity"] in _GRAVE for each in document["findings"]):
        return "contradicted"
    model = document.get("model")
    if sizes.apart or (model is not None and not model["readings"]):
        return "inconclusive"
    told = document["descriptor_bytes"] or document["readings"] or document["pool"] or document["rates"]
    sized = any(part["bytes"] and part["bytes"][1] > 0 for part in document["log"]["parts"])
    return "consistent" if told or sized else "inconclusive"


def _limits(reading: Reading, known: rates.Known) -> list[str]:
    share = Fraction(rates.NOT_AT_ALL)
    return [
        "Every reading that fits is listed, and none is chosen: the true one may be of a kind that is not looked for.",
        "Taken for granted: one descriptor a block and region, regions of one size, and, for blocks, transfers alike.",
        f"Rates are means of a transfer, set beside the declared ones of {known.source}; a kind of link is called far"
        f" below under {float(share):.0%} of its slowest (policy). No bytes are made of a rate.",
        *(f"{reading.format} does not see: {what}." for what in reading.blind),
    ]
