"""Sets a plan beside what a real engine or profiler saw: the comparison document, its witness `import`.

`match` means that the predicted bytes lie inside what the printed figure may stand for. Payload is never set beside
moved bytes: a plan without the engine's byte rule leaves the row unwitnessed. Times are beside, and judge nothing.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from fleet.errors import DescriptionError
from scenarios.compare import verdict_of
from scenarios.observations.expected import PLANS_OF, Expected, Seen, expected_of, requests_in, seen_of
from scenarios.observations.links import FAR_BELOW, declared_rate, looks_like
from scenarios.observations.observation import Interval, Reading, decimals, ends
from scenarios.observations.sizing import in_words, sizing_checks

Document = dict[str, Any]

_BLIND_AT_ZERO = ("nixl", "nsight")
"""Sources in which a zero proves nothing: an agent of another process, a profiler that sees no NIC."""


def compare_observation(
    plan: Document, reading: Reading, *, requests: int | None = None, version: str | None = None
) -> Document:
    """`kvwaybill/comparison/1` of a plan and a reading. `requests`: how many the observation covers, where it is known.

    Raises DescriptionError for a plan that was not admitted or hands nothing over.
    """
    if reading.engine == "nsight":
        from scenarios.observations.profiles import compare_profile

        return compare_profile(plan, reading, requests)
    expected = expected_of(plan)
    seen = seen_of(reading, expected)
    row, checks, covered = _handoff(expected, seen, reading, requests)
    told = next((one.version for one in reading.observations if one.version), None)
    checks += [
        _version(expected, version or told),
        *_models(plan, reading),
        *_failures(seen),
        *sizing_checks(plan, reading, expected),
    ]
    check_size(row, reading)
    return {
        "schema": "kvwaybill/comparison/1",
        "compared": ["plan", "observation"],
        "verdict": verdict_of(checks),
        "rows": [row],
        "checks": checks,
        "observation": described(reading) | {"requests": None if covered is None else float(covered)},
        "times": _times(plan, expected, seen, covered),
        "warnings": [*reading.warnings, *(seen.words if seen else ())],
        "limits": limits_of(reading),
    }


def check_size(row: Document, reading: Reading) -> None:
    """Figures of documents fit 63 bits; larger ones are no bytes that anything moved."""
    figures = [name for name, value in row.items() if isinstance(value, int) and abs(value) >= 2**63]
    intervals = [
        one for one in reading.observations for value in (one.bytes, one.descriptors) if value and value.high >= 2**63
    ]
    if figures or intervals:
        source = reading.observations[0].source if reading.observations else "compare"
        line = next(iter(reading.observations[0].lines), 0) if reading.observations else 0
        message = "its transfers add up to 2^63 or more: no bytes that anything moved"
        raise DescriptionError.at(source, "", message, line, 1 if line else 0)


def described(reading: Reading) -> Document:
    """What the file says, for the document: sums as [least, most] in bytes, counts and seconds; null = not said."""
    return {
        "format": reading.format,
        "engine": reading.engine,
        "blind": list(reading.blind),
        "sizing": {name: ends(value) for name, value in reading.sizing.items()},
        "parts": [
            {
                "source": one.source, "version": one.version, "side": one.side, "rank": one.rank, "model": one.model,
                "transfers": ends(one.transfers), "bytes": ends(one.bytes), "descriptors": ends(one.descriptors),
                "seconds": decimals(one.seconds),
                "failed": one.failed, "lines": list(one.lines),
            }
            for one in reading.observations[:1000]
        ],
    }  # fmt: skip


def limits_of(reading: Reading) -> list[str]:
    """What such a comparison does not say."""
    return [
        "Every request of the observation is taken for one of the plan: the same tokens, prefix hits and degrees.",
        "The bytes are the source's own word (witness import): no witness of ours saw them.",
        *(f"{reading.format} does not see: {what}." for what in reading.blind),
    ]


def _handoff(
    expected: Expected, seen: Seen | None, reading: Reading, requests: int | None
) -> tuple[Document, list[Document], Fraction | None]:
    """The row, its checks, and the requests that it covers."""
    wanted = PLANS_OF.get(reading.engine, ())
    if expected.engine not in wanted:
        rule = expected.engine or "exact tokens"
        words = (
            f"the plan moves by the rule of {rule}; {reading.format} tells bytes moved by {reading.engine}: "
            f"admit again with --engine {wanted[0] if wanted else reading.engine}"
        )
        return _unwitnessed(expected, seen, words)
    uncounted = seen is None or seen.bytes is None or (seen.transfers is None and requests is None)
    if reading.unknown and uncounted:
        return _unwitnessed(expected, seen, reading.unknown[0])
    if seen is None or (seen.bytes is None and seen.transfers is None):
        return _unwitnessed(expected, seen, f"{reading.format} says nothing of transfers in the plan's direction")
    if len(models := {one.model for one in reading.observations if one.model}) > 1:
        return _unwitnessed(
            expected, seen, f"transfers of several models: {', '.join(sorted(models))}; keep those of one"
        )
    if seen.bytes is None:
        words = f"{reading.format} says no bytes here, and none are made of speed and time"
        return _unwitnessed(expected, seen, words)
    if seen.bytes.high == 0 and reading.engine in _BLIND_AT_ZERO and expected.bytes:
        return _unwitnessed(
            expected, seen, f"{reading.format} has 0 B, which proves nothing: {'; '.join(reading.blind)}"
        )
    if seen.bytes.high == 0 and requests is None:
        covered: Fraction | None = Fraction(1)
        origin = "nothing was transferred, where the plan hands one request over"
    else:
        covered, origin = requests_in(seen, expected, reading.engine, requests)
    if covered is None or expected.bytes is None:
        return _unwitnessed(expected, seen, origin if covered is None else "the plan's own bytes are unknown")
    return _judged(expected, seen, reading, covered, origin)


def _judged(
    expected: Expected, seen: Seen, reading: Reading, covered: Fraction, origin: str
) -> tuple[Document, list[Document], Fraction | None]:
    assert seen.bytes is not None
    assert expected.bytes is not None
    bytes_, copies = covered * expected.bytes, None if expected.copies is None else covered * expected.copies
    inside = bytes_ in seen.bytes
    shared = _share(expected, seen, reading, covered)
    if not inside and shared:
        return _unwitnessed(expected, seen, shared)
    pieces = None if copies is None or seen.descriptors is None else copies in seen.descriptors
    none = seen.bytes.high == 0 and bytes_ > 0
    verdict = "missing" if none else "match" if inside and pieces is not False else "mismatch"
    row = _row(expected, seen, covered) | {"verdict": verdict, "witness": "import"}
    words = f"predicted {_number(bytes_)} B ({origin}), observed {in_words(seen.bytes)} B"
    if not inside:
        words = f"{words}: {_apart(bytes_, seen.bytes)}; {_why(expected, seen, bytes_)}"
    checks = [
        _check("handoff_bytes_match", inside, words),
        _descriptors(copies, seen, pieces),
        _transfers(expected, seen, reading, covered),
    ]
    return row, checks, covered


def _share(expected: Expected, seen: Seen, reading: Reading, covered: Fraction) -> str | None:
    """SGLang's figure of several ranks: each rank's share, or the whole request's told by each; not read which."""
    ranks = expected.transfers_of_request("sglang")
    if reading.engine != "sglang" or ranks == 1 or seen.bytes is None or expected.bytes is None:
        return None
    if covered * expected.bytes * ranks not in seen.bytes:
        return None
    return f"{ranks} ranks each tell the bytes of the whole request, or each moved all of it (a latent): not told apart"


def _why(expected: Expected, seen: Seen, predicted: Fraction) -> str:
    """Whether the bytes are whole blocks of the plan's model at all."""
    assert seen.bytes is not None
    unit, whole = expected.unit_bytes, seen.bytes
    if unit is None:
        return "the plan's transfers have no block of one size to divide by"
    if whole.high - whole.low >= unit:
        return f"the rounding is wider than a {expected.unit} of {unit:,} B: whether they divide cannot be said"
    count = whole.high // unit
    if count * unit < whole.low:
        return (
            f"no whole number of {expected.unit}s of {unit:,} B lies in it: another model, cache type, {expected.unit} "
            "size or degree"
        )
    planned = predicted / unit
    return (
        f"they are {count:,} {expected.unit}s of {unit:,} B, the plan has {_number(planned)}: other prompt lengths, "
        "prefix hits, or other requests"
    )


def _descriptors(copies: Fraction | None, seen: Seen, good: bool | None) -> Document:
    if good is None:
        what = "the plan's engine merges them" if copies is None else "the source does not say them"
        return {"name": "descriptors_match", "required": False, "result": "waived", "detail": what}
    assert copies is not None
    assert seen.descriptors is not None
    words = f"predicted {_number(copies)}, observed {in_words(seen.descriptors)}"
    if not good and copies / 2 in seen.descriptors:
        words += ": half of them, as with K and V of a layer in one region"
    return _check("descriptors_match", good, words)


def _transfers(expected: Expected, seen: Seen, reading: Reading, covered: Fraction) -> Document:
    """Whether transfers are whole requests: of pairs that move alike a part of one can be priced, but not be right."""
    each = expected.transfers_of_request(reading.engine)
    if seen.transfers is None or seen.requests_unknown:
        detail = "the source counts no transfers of requests"
        return {"name": "transfers_match", "required": False, "result": "waived", "detail": detail}
    if covered * each != seen.transfers:
        words = f"{_number(covered)} requests are {_number(covered * each)} transfers, {seen.transfers:,} were counted"
        return _check("transfers_match", False, words)
    if covered.denominator != 1:
        words = f"{seen.transfers:,} transfers are no whole requests of {each}: cut by an interval, or another degree"
        return {"name": "transfers_match", "required": False, "result": "inconclusive", "detail": words}
    return _check("transfers_match", True, f"{seen.transfers:,} transfers, {each} a request")


def _version(expected: Expected, version: str | None) -> Document:
    name = "engine_version"
    if version is None:
        detail = "nobody names the engine's version; byte rules differ by version: --engine-version V"
        return {"name": name, "required": False, "result": "waived", "detail": detail}
    if expected.version is None or expected.version == version:
        detail = f"version {version}; the rule follows what was read, whose release is not known"
        return {
            "name": name,
            "required": False,
            "result": "waived" if expected.version is None else "passed",
            "detail": detail,
        }
    detail = f"the plan is for version {expected.version}, the observation of {version}"
    return {"name": name, "required": True, "result": "inconclusive", "detail": detail}


def _models(plan: Document, reading: Reading) -> list[Document]:
    """Whether the source names the plan's model; a name proves nothing, so it never fails a comparison."""
    named = sorted({one.model for one in reading.observations if one.model})
    planned = str(((plan.get("inputs") or {}).get("model") or {}).get("name") or "")
    if len(named) != 1 or not planned:
        return []
    alike = planned.casefold().removesuffix(".json") in (named[0].casefold(), named[0].rpartition("/")[2].casefold())
    detail = f"the source names {named[0]}, the plan {planned}"
    return [
        {"name": "model_named", "required": False, "result": "passed" if alike else "inconclusive", "detail": detail}
    ]


def _failures(seen: Seen | None) -> list[Document]:
    if seen is None or seen.failed is None:
        return []
    words = f"{seen.failed:,} transfers failed" + ("; a retry moves bytes again" if seen.failed else "")
    return [_check("no_failed_transfers", seen.failed == 0, words)]


def _check(name: str, good: bool, detail: str) -> Document:
    return {"name": name, "required": True, "result": "passed" if good else "failed", "detail": detail}


def _unwitnessed(expected: Expected, seen: Seen | None, words: str) -> tuple[Document, list[Document], Fraction | None]:
    row = _row(expected, seen, Fraction(1)) | {"verdict": "unwitnessed", "witness": "none", "difference": None}
    check = {"name": "handoff_bytes_match", "required": True, "result": "inconclusive", "detail": words}
    return row, [check], None


def _row(expected: Expected, seen: Seen | None, covered: Fraction) -> Document:
    """One row for all pairs: the source tells neither tensors nor pairs apart. `observed_*` is null unless exact."""
    sources, targets = ([pair[end] for pair in expected.pairs] for end in (0, 1))
    bytes_ = None if expected.bytes is None else covered * expected.bytes
    copies = None if expected.copies is None else covered * expected.copies
    found, pieces = (seen.bytes, seen.descriptors) if seen else (None, None)
    return {
        "phase": "handoff", "tensor": "kv", "src": sources[0], "dst": targets[0], "kind": "p2p",
        "predicted_bytes": _whole(bytes_), "counted_bytes": None, "observed_bytes": _exact(found),
        "difference": None if bytes_ is None or found is None else _gap(bytes_, found),
        "predicted_copies": _whole(copies), "counted_copies": None, "observed_copies": _exact(pieces),
        "observed_bytes_interval": ends(found), "observed_copies_interval": ends(pieces),
        "pairs": [list(pair) for pair in expected.pairs],
    }  # fmt: skip


def _exact(value: Interval | None) -> int | None:
    """The only whole number in it: bytes and pieces are whole, so a narrow interval is exact."""
    whole = value.whole() if value is not None else None
    return whole[0] if whole and whole[0] == whole[1] else None


def _whole(value: Fraction | None) -> int | None:
    return None if value is None or value.denominator != 1 else int(value)


def _gap(predicted: Fraction, found: Interval) -> int:
    """0 inside; else how far the nearest end of what was observed lies from the prediction, towards 0."""
    if predicted in found:
        return 0
    return int(found.low - predicted) if predicted < found.low else int(found.high - predicted)


def _apart(predicted: Fraction, found: Interval) -> str:
    gap = _gap(predicted, found)
    return f"at least {abs(gap):,} B {'more' if gap >= 0 and predicted < found.low else 'less'} than predicted"


def _number(value: Fraction) -> str:
    return f"{int(value):,}" if value.denominator == 1 else f"{float(value):,.2f}"


def _times(plan: Document, expected: Expected, seen: Seen | None, covered: Fraction | None) -> Document:
    """Seconds and rates beside each other: a transfer's average, which overlapping transfers share a link in."""
    slowest = declared_rate(plan)
    told = [pair[2] for pair in expected.pairs.values()]
    known = [second for second in told if second is not None]
    each = max(known) if known and len(known) == len(told) else None
    times: Document = {
        "predicted_seconds": None if each is None else float(each),
        "observed_seconds": None, "observed_bytes_per_s": None,
        "declared_bytes_per_s": slowest[0] if slowest else None, "link": slowest[1] if slowest else None, "words": None,
    }  # fmt: skip
    rate = seen.rates if seen else None
    if seen is not None and seen.seconds is not None and seen.transfers and seen.seconds.low > 0:
        times["observed_seconds"] = [float(end / seen.transfers) for end in (seen.seconds.low, seen.seconds.high)]
        if seen.bytes is not None and seen.bytes.low > 0:
            rate = Interval(seen.bytes.low / seen.seconds.high, seen.bytes.high / seen.seconds.low)
    if rate is not None:
        times["observed_bytes_per_s"] = [int(rate.low), int(rate.high)]
        times["words"] = _rate_words(plan, rate, slowest)
    return times


def _rate_words(plan: Document, rate: Interval, slowest: tuple[int, str] | None) -> str | None:
    if slowest is None:
        return f"the plan's edge has no rate; {looks_like(plan, rate)}"
    declared, kind = slowest
    if rate.low > declared:
        return f"faster than the declared {kind}: its rate, the way or the metric is another than the plan's"
    if rate.high >= declared * FAR_BELOW:
        return None
    share = float(rate.high / declared)
    return f"{share:.2%} of the declared {kind} at most: {looks_like(plan, rate)}"
