"""A slow oracle: the request acted out copy by copy, in plain loops that share nothing with the planner's formulas."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.placement import Placement
from planner.admit import Ask, admit
from planner.request import Request
from tests.planner.fleets import llama2c, pair

Key = tuple[str, str, str, str]


def act_out(
    case: dict[str, int], mode: str, extent: str, decode: str, drawn: bool
) -> tuple[Counter[Key], Counter[Key]]:
    """(bytes, copies) by row for one request, made by pretending to run it."""
    nbytes: Counter[Key] = Counter()
    copies: Counter[Key] = Counter()

    def copy(phase: str, tensor: str, src: str, dst: str, size: int) -> None:
        nbytes[(phase, tensor, src, dst)] += size
        copies[(phase, tensor, src, dst)] += 1

    dim, hidden, layers = case["dim"], case["hidden"], case["layers"]
    kv = case["kv_heads"] * case["head"]
    per_layer = {"wq": dim * dim, "wk": kv * dim, "wv": kv * dim, "wo": dim * dim}
    per_layer |= {"w1": hidden * dim, "w2": dim * hidden, "w3": hidden * dim}
    for device in dict.fromkeys(["gpu:0", decode]):
        for size in per_layer.values():
            copy("stage", "weights", "host", device, 4 * layers * size)
        copy("stage", "weights", "host", device, 4 * case["vocab"] * dim)
        if mode == "device":
            for size in (layers * dim, layers * dim, dim):
                copy("stage", "weights", "host", device, 4 * size)

    def forward(phase: str, device: str) -> None:
        for _ in range(layers):
            for into, out in (
                (dim, dim),
                (dim, kv),
                (dim, kv),
                (dim, dim),
                (dim, hidden),
                (dim, hidden),
                (hidden, dim),
            ):
                copy(phase, "act_in", "host", device, 4 * into)
                copy(phase, "act_out", device, "host", 4 * out)
        copy(phase, "act_in", "host", device, 4 * dim)
        copy(phase, "act_out", device, "host", 4 * case["vocab"])

    prompt, passes = case["prompt"], case["passes"]
    for position in range(passes):
        phase, device = ("prefill", "gpu:0") if position < prompt else ("decode", decode)
        if position == prompt:
            hand_over(case, mode, extent, decode, kv, copy)
            if mode == "device" and not drawn:
                copy("decode", "tokens", "host", decode, 4)
        if mode == "host":
            forward(phase, device)
            continue
        if phase == "prefill" or drawn:
            copy(phase, "tokens", "host", device, 4)
        if position >= prompt - 1:
            copy(phase, "logits" if drawn else "next_token", device, "host", 4 * case["vocab"] if drawn else 4)
    return nbytes, copies


def hand_over(case: dict[str, int], mode: str, extent: str, decode: str, kv: int, copy) -> None:  # type: ignore[no-untyped-def]
    hops = [("gpu:0", decode)]
    if mode == "host":
        hops = [("host", "gpu:0"), *hops, (decode, "host")]
    for src, dst in hops:
        for tensor in ("k", "v"):
            if extent == "allocated":
                copy("handoff", tensor, src, dst, 4 * case["layers"] * case["positions"] * kv)
                continue
            for _ in range(case["layers"]):
                if extent == "filled":
                    copy("handoff", tensor, src, dst, 4 * case["prompt"] * kv)
                    continue
                block = int(extent.split(":")[1])
                position = 0
                while position < case["prompt"]:
                    copy("handoff", tensor, src, dst, 4 * block * kv)
                    position += block


@st.composite
def cases(draw: st.DrawFn) -> dict[str, int]:
    head = draw(st.sampled_from([2, 4, 8, 10]))
    kv_heads = draw(st.integers(1, 3))
    seq_len = draw(st.integers(4, 40))
    passes = draw(st.integers(1, seq_len))
    return {
        "head": head,
        "kv_heads": kv_heads,
        "dim": head * kv_heads * draw(st.integers(1, 3)),
        "hidden": draw(st.integers(1, 50)),
        "layers": draw(st.integers(1, 4)),
        "vocab": draw(st.integers(3, 300)),
        "seq_len": seq_len,
        "passes": passes,
        "prompt": draw(st.integers(1, seq_len + 3)),
        "positions": draw(st.integers(passes, seq_len)),
    }


@settings(deadline=None, max_examples=150)
@given(
    case=cases(),
    mode=st.sampled_from(["device", "host"]),
    extent=st.one_of(st.sampled_from(["filled", "allocated"]), st.integers(1, 20).map(lambda n: f"blocks:{n}")),
    decode=st.sampled_from(["gpu:0", "gpu:1"]),
    drawn=st.booleans(),
)
def test_rows_equal_a_request_acted_out_copy_by_copy(
    case: dict[str, int], mode: str, extent: str, decode: str, drawn: bool
) -> None:
    model = llama2c(
        case["dim"],
        case["hidden"],
        case["layers"],
        case["dim"] // case["head"],
        case["kv_heads"],
        case["vocab"],
        case["seq_len"],
    )
    if case["positions"] < case["passes"]:
        return
    request = Request(
        prompt_tokens=case["prompt"],
        steps=case["passes"],
        positions=case["positions"],
        attention=mode,
        kv_extent=extent,
        temperature=0.8 if drawn else None,
    )
    placement = Placement(prefill="gpu:0", decode=decode)
    admission = admit(Ask(fleet=pair(), model=model, request=request, placement=placement))
    assert admission.prediction is not None
    found = admission.prediction.rows
    nbytes, copies = act_out(case, mode, extent, decode, drawn)
    assert {(r.phase, r.tensor, r.src, r.dst): r.bytes for r in found} == dict(nbytes)
    assert {(r.phase, r.tensor, r.src, r.dst): r.copies for r in found} == dict(copies)
    assert sum(edge.bytes or 0 for edge in admission.prediction.edges) == nbytes.total()
