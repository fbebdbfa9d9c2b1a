"""A copied function body in which two steps changed places, for the sabotage of that name, on both paths.

The numbers it computes are those of the program text; only its sequence is another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from executor.fused_path import FusedPath, buffers_of
from executor.stretch import Span, Stretch, Walked
from executor.transformer import Cache, Instance, WeightSet


def values_before_keys(device: Instance, weights: WeightSet, kv: Cache, tokens: Any, position: int) -> None:
    """The program text with V computed before K."""
    act = device.rows()
    device.embed(act.x, weights.token_embedding, tokens)
    for layer in range(device.n_layers):
        k, v = device.at(kv.k[layer], position), device.at(kv.v[layer], position)
        device.rmsnorm(act.xb, act.x, weights.rms_att[layer])
        device.matmul(act.q, act.xb, weights.wq[layer])
        device.matmul(v, act.xb, weights.wv[layer])
        device.matmul(k, act.xb, weights.wk[layer])
        for rows, row in ((act.q, weights.bq), (k, weights.bk), (v, weights.bv)):
            device.bias(rows, row[layer])
        device.head_norm(act.q, weights.q_norm[layer])
        device.head_norm(k, weights.k_norm[layer])
        device.rope(act.q, k, layer, position)
        device.attention(act.att, act.q, kv.k[layer], kv.v[layer], layer, position)
        device.matmul(act.xb2, act.att, weights.wo[layer])
        device.bias(act.xb2, weights.bo[layer])
        device.add(act.x, act.xb2, layer)
        device.rmsnorm(act.xb, act.x, weights.rms_ffn[layer])
        device.matmul(act.hb, act.xb, weights.w1[layer])
        device.matmul(act.hb2, act.xb, weights.w3[layer])
        device.bias(act.hb, weights.b1[layer])
        device.bias(act.hb2, weights.b3[layer])
        device.swiglu(act.hb, act.hb2, layer)
        device.matmul(act.xb2, act.hb, weights.w2[layer])
        device.bias(act.xb2, weights.b2[layer])
        device.add(act.x, act.xb2, layer)
    x = device.last(act.x)
    device.rmsnorm(x, x, weights.rms_final)
    logits = device.logits()
    device.matmul(logits, x, weights.classifier)
    device.argmax(logits)


def walk_values_before_keys(
    fused: FusedPath, stretch: Stretch, address: Callable[[str], int], places: Sequence[Span]
) -> Walked:
    """A decode stretch by the pieces of the compiled call, put together with V before K."""
    from executor.packed import pieces, slots

    book, plan = fused.book(places), fused.plan(stretch, address)
    ids, chosen, top1 = buffers_of(stretch)
    plain = fused.plain
    for done in range(stretch.passes):
        pieces.begin_call(book, plan, ids, chosen, done, 1)
        pieces.embed_tokens(book, plan, done, plain)
        for layer in range(int(plan[slots.LAYERS])):
            pieces.normalise(book, plan, slots.RMS_ATT, layer, None)
            for weight in (slots.WQ, slots.WV, slots.WK):
                pieces.project(book, plan, weight, layer, None, None, plain)
            pieces.attend(book, plan, layer, None, None, plain)
            pieces.feed_forward(book, plan, layer, None, None, plain)
        pieces.choose(book, plan, None, None, plain)
        pieces.end_call(book, plan, chosen, top1, done + 1, True)
        if chosen[done] == slots.BOS:
            break
    return fused.walked(stretch, book, places, chosen, top1)
