"""What a result does not say, in words. Printed with every result, in text and in JSON."""

from __future__ import annotations

from typing import Any

Document = dict[str, Any]

_COMPUTE = (
    "f32 only, batch 1: what the executor computes of llama2.c's checkpoints; of folders of safetensors (llama,"
    " mistral, qwen2, qwen3) their own fp32, bf16 or fp16, summed in f32."
    " Other types and batches can be priced, not run."
)
_ATTENTION = {
    "device": (
        "attention: device. Everything runs on the device; the token id chosen there crosses to the host,"
        " or the logits, where ids are drawn on the host."
    ),
    "host": (
        "attention: host. Only the seven projections and the classifier run on the device; embedding, norms, RoPE,"
        " attention, SwiGLU and sampling run on the host, which holds the working KV copies."
    ),
}
_COUNTED = (
    "Bytes are exact for the tensors that the orders name; packet headers and descriptors of a driver are not counted."
)
_CACHES = (
    "Caches other than k and v of one shape are priced and run by nobody: window layers hold min(tokens, window)"
    " positions (an engine that evicts none holds all), states one each whatever the tokens."
)
_PROGRAM = (
    "activations are a bound from above (every output of the widest layer kept at once, a vision tower left out), and"
    " dispatches are not counted: no program of ours computes the layers of this model."
)
_TIMES = (
    "Times are latency x copies + bytes / bandwidth over the declared links (or, with --rates observed, over what was"
    " observed of them), without contention; TTFT and TPOT a roofline of stated rates times a share of each."
    " unscored: no run was compared with them."
    " unpriced (null): a rate or the way is unknown."
    " >= (lower_bound): a link on the way states no latency, so its bandwidth alone is priced;"
    " or a pass reads so little that launches decide, which are not priced."
)
_CONTENTION = (
    "contention: a lower bound for flows of one phase over one segment if they run at the same time: the longest alone,"
    " bytes / bandwidth, and the sum of their times / copy_engines. Without `duplex` the directions are taken as"
    " independent; without `copy_engines` any number of copies at once."
)
_ASSUMED = (
    "assumed: legs over host links that the fleet does not declare (--assume-host-return). They are policy: no rate,"
    " and nobody says that the machine has them."
)
_EMULATED = (
    "tier emulated: devices are separate fenced memories of one processor. Bytes, copies and isolation are shown;"
    " speed and a second physical device are not."
)
_ON_DEVICE = "tier on-device: bytes are what the program copied; two devices are claimed only by two UUIDs."
_WITNESS = {
    "arrival": (
        "The arrival witness sees stage and handoff rows: words changed at the destination, and digests of K and V."
        " It cannot see a repeated copy of the same bytes; other rows are counted by the ledger alone."
    ),
    "cupti": (
        "The cupti witness is the driver's own record of every copy: bytes, copies, devices. What kernels, network"
        " cards or other processes move has no record; it reads no memory (digests of K and V do)."
    ),
    "receiver": "The receiver witness counts bytes at the receiving end.",
    "import": "Observed figures were imported; how they were taken is known to whoever took them.",
}
_UNWITNESSED = "No witness looked: every figure of the run is the program's own count."


_WORKERS = (
    "workers: the sums that ranks of a stage exchange in each layer, and the activations that stages pass on, are no"
    " rows; experts are split like any matrix, not spread; a vision tower is counted whole on each rank."
)


def attention_of(document: Document) -> str | None:
    """The attention mode that a plan's orders or a run's settings state; None when neither does."""
    places = (
        (document.get("orders") or {}).get("workload"),
        (document.get("inputs") or {}).get("workload"),
        document.get("settings"),
    )
    modes = [place.get("attention") for place in places if isinstance(place, dict)]
    return next((mode for mode in modes if isinstance(mode, str) and mode in _ATTENTION), None)


def plan_limits(
    attention: str | None,
    *,
    assumed: bool = False,
    shared: bool = False,
    other_caches: bool = False,
    workers: bool = False,
    other_program: bool = False,
) -> list[str]:
    """Limits of an admission. `attention` None: the model is not understood, so no mode was laid out.

    `assumed`: a leg goes over a host link that the fleet does not declare. `shared`: flows share a segment.
    `other_caches`: the model keeps something else than k and v of one shape. `workers`: a phase has several ranks.
    `other_program`: no program of ours computes the model.
    """
    each = ((_CONTENTION, shared), (_ASSUMED, assumed), (_CACHES, other_caches), (_WORKERS, workers),
            (_PROGRAM, other_program))  # fmt: skip
    more = [words for words, told in each if told]
    return [_COMPUTE, *_mode(attention), _COUNTED, _TIMES, *more]


def run_limits(attention: str | None, tier: str, witnesses: set[str] | frozenset[str] = frozenset()) -> list[str]:
    """Limits of a run. `tier` emulated or on-device; `witnesses` that looked."""
    seen = [_WITNESS[witness] for witness in sorted(witnesses) if witness in _WITNESS]
    return [_COMPUTE, *_mode(attention), _EMULATED if tier == "emulated" else _ON_DEVICE, *(seen or [_UNWITNESSED])]


def _mode(attention: str | None) -> list[str]:
    return [] if attention is None else [_ATTENTION[attention]]


def witnesses_of(run: Document) -> set[str]:
    """The witnesses named in a run's rows."""
    parts = [part for row in run["waybill"] for part in (row, *(row.get("legs") or ()))]
    return {part["witness"] for part in parts if part.get("witness") not in (None, "none")}


def comparison_limits(a: Document, b: Document) -> list[str]:
    """Limits of setting two documents side by side."""
    kinds = tuple(str(document["schema"]).split("/")[1] for document in (a, b))
    if kinds == ("plan", "plan"):
        first = "Two plans: nothing ran. In JSON, A stands under predicted and B under observed."
        return [first, *plan_limits(attention_of(a))]
    if kinds == ("run", "run"):
        first = "Two runs: in JSON, A stands under predicted and B under observed; their witnesses do not count here."
        return [first, *run_limits(attention_of(b), b["tier"], witnesses_of(b))]
    limits = run_limits(attention_of(a), b["tier"], witnesses_of(b))
    if b["plan_id"] is not None and b["plan_id"] != a["id"]:
        limits.insert(0, f"The run names another plan ({b['plan_id'][:12]}, this is {a['id'][:12]}): see same_inputs.")
    return limits


def proof_limits(attention: str | None, tier: str, witnesses: set[str]) -> list[str]:
    """Limits of a proof: it shows this request on this machine, and that the listed sabotages are caught. `witnesses`
    are those that looked at the honest run.
    """
    return [
        "A proof covers this request and the sabotages listed; each check is shown able to fail, not to be complete.",
        *run_limits(attention, tier, witnesses),
    ]


def scenario_limits() -> list[str]:
    """Limits of what `scenario list|show` says."""
    return ["A scenario says what is asked; it is not admitted by being listed.", _COMPUTE]


def fleet_limits() -> list[str]:
    """Limits of what `fleet check|show|catalog` says."""
    return ["A fleet file says what is declared; nothing in it was probed or measured here."]


def model_limits() -> list[str]:
    """Limits of what `model show` says."""
    return [
        "Checkpoint bytes: an engine may pad what it loads. KV bytes are those of one sequence on one device.",
        _COMPUTE,
    ]


def backend_limits() -> list[str]:
    """Limits of what `backends` says."""
    return ["A backend listed can start here; what it computes is shown by its conformance tests.", _COMPUTE]
