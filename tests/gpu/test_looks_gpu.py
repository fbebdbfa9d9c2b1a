"""On a real card: digests and counts beside plain Python, attention in tiles, narrow weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from executor.device import DeviceSpec
from executor.events import Label
from executor.observers.digest import tree_digest
from planner.plan import make_orders
from tests.executor.requests import ORACLE, admitted, embedded, run_once
from tests.gpu.card import backend, needs
from tests.gpu.test_kernels_gpu import close, rand
from tests.gpu.test_narrow_fake import TYPES, rounded

pytestmark = needs(1)
LABEL = Label("stage", 0, "weights")


@pytest.mark.parametrize("nbytes", [4, 52, 56, 60, 64, 4092, 4096, 4100, 128 * 4096, 128 * 4096 + 4, (64 << 20) + 4096])
def test_a_digest_of_the_card_is_the_one_of_plain_python(nbytes: int) -> None:
    words = np.random.default_rng(nbytes).integers(0, 1 << 32, nbytes // 4 + 9, np.uint32).view(np.int32)
    with backend()([DeviceSpec(id="gpu:0", topology_id=500, kind="gpu", index=0, fence_bytes=words.nbytes)]) as made:
        made.alloc_and_transfer("gpu:0", "words", words, LABEL)
        found = made.arenas()["gpu:0"].digests(12, nbytes, 8, 2)
    content = words.tobytes()
    assert found == [tree_digest(content[at : at + nbytes]) for at in (12, 20)]


def test_ranges_are_hashed_and_counted_in_any_number() -> None:
    words = np.arange(40_000, dtype=np.int32) % 1000
    with backend()([DeviceSpec(id="gpu:0", topology_id=500, kind="gpu", index=0, fence_bytes=words.nbytes)]) as made:
        made.alloc_and_transfer("gpu:0", "words", words, LABEL)
        arena = made.arenas()["gpu:0"]
        found = arena.digests(0, 120, 800, 200)
        assert arena.count_other(0, 400, 800, 200, 7) == 200 * 100 - sum(
            words[200 * i : 200 * i + 100].tolist().count(7) for i in range(200)
        )
        assert arena.count_other(0, 4 * 40_000, 0, 1, 0xFFFFFFFF) == 40_000
    assert found == [tree_digest(words[200 * i : 200 * i + 30].tobytes()) for i in range(200)]


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"), [(2, 2, 8), (8, 2, 48), (4, 1, 64), (4, 4, 128), (2, 2, 256)]
)
@pytest.mark.parametrize(("rows", "pos0"), [(64, 0), (65, 3), (130, 70), (257, 300)])
def test_attention_of_many_tokens(heads: int, kv_heads: int, head_dim: int, rows: int, pos0: int) -> None:
    positions, width = pos0 + rows + 2, heads * head_dim
    q, k, v = rand(rows, width), rand(positions, kv_heads * head_dim), rand(positions, kv_heads * head_dim) + 1
    scratch = np.zeros((heads, positions), np.float32)
    shape: dict[str, Any] = {"pos0": pos0, "n_heads": heads, "n_kv_heads": kv_heads, "head_dim": head_dim}
    k[pos0 + rows :] = v[pos0 + rows :] = np.nan  # behind the last token: never read
    close("attention", np.zeros((rows, width), np.float32), q, k, v, scratch, **shape)


@pytest.mark.parametrize("dtype", TYPES)
def test_narrow_weights_compute_what_rounded_ones_do(dtype: str) -> None:
    made: Any = backend()
    orders = make_orders(admitted(embedded().model, steps=64, devices=ORACLE, granule=2 << 20))
    mine = run_once(orders, embedded(), backend=made.computing(dtype))
    plain = run_once(orders, rounded(dtype), backend=made)
    assert mine.tokens == plain.tokens
    near, far = (np.array(facts.logits_top1_bits, np.uint32).view(np.float32) for facts in (mine, plain))
    assert np.allclose(near, far, rtol=1e-5, atol=1e-5)  # sums in another order: a load holds twice as many values
    assert mine.driver_seen == plain.driver_seen


@pytest.mark.parametrize("dtype", TYPES)
def test_narrow_prefill_in_one_call_is_near_the_f32_one(dtype: str) -> None:
    made: Any = backend()
    orders = make_orders(admitted(embedded().model, steps=64, devices=ORACLE, granule=2 << 20, prefill_chunk=64))
    mine, plain = (
        run_once(orders, embedded(), backend=made.computing(dtype)),
        run_once(orders, embedded(), backend=made),
    )
    near, far = (np.array(facts.logits_top1_bits[:1], np.uint32).view(np.float32) for facts in (mine, plain))
    assert abs(near[0] - far[0]) < (0.1 if dtype == "bf16" else 0.02) * max(1.0, abs(far[0]))
