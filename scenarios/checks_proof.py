"""The checks of a proof. Each needs a further run of the same request, with something changed."""

from __future__ import annotations

from fleet.model import DTYPE_BYTES
from scenarios.case import Case, Document
from scenarios.finding import Finding, failed, inconclusive, no_decode, passed, waived

LOCKABLE_BACKENDS = ("numba", "null")
"""Backends whose memory is pages of this process."""


def no_stray_access(case: Case) -> Finding:
    """Fails when a phase touched an arena that its step is not party to (the access dies in a forked child)."""
    if case.b["backend"] not in LOCKABLE_BACKENDS:
        return waived("memory can be locked away on the processor only")
    if case.is_oracle and case.orders["workload"]["attention"] == "device":
        return waived("one arena holds both phases: there is none to close")
    stray = case.b.get("stray")
    if stray is None:
        return inconclusive("the run was not isolated: no arena was locked away from it")
    detail = stray.get("detail") or ""
    if stray["accesses"]:
        return failed(f"{stray['accesses']} stray access: {detail}")
    return passed(detail or "no access to an arena that the step is not party to")


def changed(first: list[object], second: list[object]) -> int:
    """Places at which two sequences differ; what only one of them has counts as different."""
    alike = sum(1 for a, b in zip(first, second, strict=False) if a == b)
    return max(len(first), len(second)) - alike


def _differences(run: Document, other: Document) -> tuple[int, int, str]:
    """(chosen tokens changed, logits bits changed, both in words)."""
    tokens = changed(run["generated_tokens"], other["generated_tokens"])
    bits = changed(run["logits_top1_bits"], other["logits_top1_bits"])
    of_tokens = max(len(run["generated_tokens"]), len(other["generated_tokens"]))
    of_bits = max(len(run["logits_top1_bits"]), len(other["logits_top1_bits"]))
    return tokens, bits, f"{tokens} of {of_tokens} tokens and {bits} of {of_bits} top logits changed"


def tokens_equal_single_device(case: Case) -> Finding:
    """Fails when the split run's ids, or the bits of its largest logits, differ from the run on one device."""
    if case.is_oracle:
        return waived("prefill and decode are placed on one device")
    single = case.proof.single_device if case.proof else None
    if single is None:
        return inconclusive("the request was not run on a single device")
    _, bits, words = _differences(case.b, single)
    walked = changed(case.b["tokens"], single["tokens"])
    if bits and not walked and _unlike_processors(case):
        return passed(f"{len(single['tokens'])} ids equal; {words}: a GPU and a CPU add in different orders")
    if walked or bits:
        return failed(f"{words}; {walked} of {len(single['tokens'])} walked ids differ from the run on one device")
    if not single["logits_top1_bits"]:
        return passed(f"{len(single['tokens'])} ids equal; no pass computed logits")
    return passed(f"{len(single['tokens'])} ids and {len(single['logits_top1_bits'])} top logits equal in every bit")


def _unlike_processors(case: Case) -> bool:
    """Whether the phases really ran on devices of unlike kind, whose sums have not one order."""
    kinds = {device["id"]: device["kind"] for device in case.orders["devices"]}
    placed = {kinds[case.orders[phase]] for phase in ("prefill", "decode")}
    return case.b["backend"] not in LOCKABLE_BACKENDS and len(placed) > 1


def handoff_is_load_bearing(case: Case) -> Finding:
    """Fails when the handoff can be deleted and some kind of memory gives the very same logits: decode knew already.

    Judged by tokens and by logits bits, on poisoned and on zeroed memory. Changed bits without a single changed token
    are not enough to pass: then the prompt is too short to tell.
    """
    if finding := no_decode(case):
        return finding
    deleted = case.proof.without_handoff if case.proof else {}
    if absent := [memory for memory in ("poisoned", "zeroed") if memory not in deleted]:
        return inconclusive(f"the request was not run without its handoff on {' and '.join(absent)} memory")
    found = {memory: _differences(case.b, run) for memory, run in sorted(deleted.items())}
    words = "without the handoff: " + "; ".join(f"{memory} memory: {told}" for memory, (_, _, told) in found.items())
    if any(not bits and not tokens for tokens, bits, _ in found.values()):
        return failed(words)
    if any(not bits for _, bits, _ in found.values()) or all(not tokens for tokens, _, _ in found.values()):
        return inconclusive(f"{words}; ask for more steps or another prompt")
    return passed(words)


def decode_uses_its_own_memory(case: Case) -> Finding:
    """Fails when decode rests on other memory than its own.

    As decode begins, the executor itself poisons, one run each: decode's cache and decode's weights (then the logits
    must change) and prefill's cache (then nothing may). And the witness must see decode write its own cache, all of it.
    """
    if finding := no_decode(case):
        return finding
    lost = case.proof.lost if case.proof else {}
    if absent := [name for name in ("decode cache", "decode weights", "prefill cache") if name not in lost]:
        return inconclusive(f"the request was not run with {', '.join(absent)} lost")
    wrong = []
    for name in ("decode cache", "decode weights"):
        if not _differences(case.b, lost[name])[1]:
            wrong.append(f"{name} lost, and no logit changed")
    if sum(_differences(case.b, lost["prefill cache"])[:2]):
        wrong.append(f"prefill cache lost: {_differences(case.b, lost['prefill cache'])[2]}")
    wanted, written = _cache_bytes(case), case.b.get("cache_written_bytes")
    if written is not None and written != wanted:
        wrong.append(f"decode wrote {written:,} B of its cache, its passes make {wanted:,} B")
    if wrong:
        return failed("; ".join(wrong))
    return passed(f"its cache or weights lost, the logits change; prefill's lost, nothing does; {wanted:,} B written")


def _cache_bytes(case: Case) -> int:
    """K and V of the positions that decode walked: 2 * L * passes * KD elements, from the shape of its own buffers."""
    for arena in case.orders["arenas"]:
        for buffer in arena["buffers"]:
            if buffer["name"] == "kv/decode/k":
                layers, _, width = buffer["shape"]
                element = DTYPE_BYTES[buffer["dtype"]]
                return int(2 * layers * case.b["passes"]["decode"] * width * element)
    return 0
