"""Laws of the cache arithmetic, on layers of every kind; each formula of the table, evaluated, is an oracle too."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.models import kv
from fleet.models.layers import KINDS, CacheLayer, full_layers, layers_on_rank, on_rank, run_lengths, split_or_copied

PLAIN_TYPES = st.sampled_from(("bf16", "fp16", "fp32", "fp8"))
small = st.integers(1, 40)


def attention(kind: str) -> st.SearchStrategy[CacheLayer]:
    window = st.none() if kind == "full" else st.integers(1, 500)
    return st.builds(CacheLayer, kind=st.just(kind), heads=small, key_dim=small, value_dim=small, window=window)


def state(kind: str, **groups: st.SearchStrategy[int]) -> st.SearchStrategy[CacheLayer]:
    return st.builds(_recurrent, st.just(kind), small, small, small, st.integers(2, 5), **groups)


def _recurrent(kind: str, heads: int, width: int, n: int, kernel: int, groups: int = 0) -> CacheLayer:
    sizes = {
        "gated-deltanet": (width * n, heads * n, 2 * width),
        "mamba2": (width * n, heads * width, 2 * n),
        "mamba1": (n, heads, 0),
        "kda": (width * width, 3 * heads * width, 0),
    }[kind]
    return CacheLayer(
        kind=kind, state_heads=heads, state_unit=sizes[0], conv_columns=kernel - 1, conv_channels=sizes[1],
        conv_groups=groups, conv_group_dim=sizes[2],
    )  # fmt: skip


LAYERS: dict[str, st.SearchStrategy[CacheLayer]] = {
    **{kind: attention(kind) for kind in ("full", "sliding", "chunked")},
    "mla": st.builds(CacheLayer, kind=st.just("mla"), latent_dim=small, rope_dim=small),
    "mla+indexer": st.builds(
        CacheLayer, kind=st.just("mla+indexer"), latent_dim=small, rope_dim=small, index_dim=small
    ),
    "gated-deltanet": state("gated-deltanet", groups=small),
    "mamba2": state("mamba2", groups=small),
    "mamba1": state("mamba1"),
    "kda": state("kda"),
    **{kind: st.just(CacheLayer(kind=kind)) for kind in ("mlp", "moe", "none")},
}
any_layer = st.one_of(*LAYERS.values())
any_model = st.lists(any_layer, min_size=1, max_size=12).map(tuple)


def test_every_kind_has_its_strategy():
    assert set(LAYERS) == set(KINDS)


@pytest.mark.parametrize("kind", LAYERS)
def test_each_formula_evaluated_gives_the_bytes_of_the_arithmetic(kind):
    @settings(max_examples=60, deadline=None)
    @given(LAYERS[kind], st.integers(1, 2000), st.sampled_from((("bf16", 2), ("fp32", 4))))
    def check(layer, tokens, dtype):
        numbers = KINDS[kind].numbers(layer) | {"T": tokens, "e": dtype[1], "e_s": 4, "min": min}
        wanted = eval(KINDS[kind].formula, {"__builtins__": {}}, numbers)  # our own table, not a file's text
        held = kv.layer_bytes(layer, tokens, dtype[0]) + kv.layer_state_bytes(layer, state="fp32", conv=dtype[0])
        assert held == wanted

    check()


@settings(max_examples=200, deadline=None)
@given(any_model, st.integers(0, 3000), st.integers(0, 500), PLAIN_TYPES, st.integers(1, 64))
def test_bytes_grow_with_tokens_and_blocks_round_up_by_less_than_a_block(layers, tokens, more, dtype, block):
    exact = kv.kv_bytes(layers, tokens, dtype)
    assert exact <= kv.kv_bytes(layers, tokens + more, dtype)
    assert exact <= kv.kv_bytes(layers, tokens, dtype, reading="full")
    assert kv.kv_bytes(layers, tokens, dtype, reading="open_chunk") <= exact
    rounded = kv.kv_bytes(layers, tokens, dtype, block=block)
    assert exact <= rounded <= exact + (block - 1) * kv.bytes_per_token(layers, dtype)
    assert kv.kv_bytes(layers, tokens, dtype, reading="full", block=block) == kv.kv_bytes(
        layers, -(-tokens // block) * block, dtype, reading="full"
    )


@settings(max_examples=200, deadline=None)
@given(any_model, any_model, st.integers(0, 3000), st.integers(0, 3000), PLAIN_TYPES)
def test_bytes_add_over_layers_and_at_full_rate_over_tokens(first, second, a, b, dtype):
    def held(layers, tokens):
        return kv.kv_bytes(layers, tokens, dtype, reading="full")

    assert held(first + second, a) == held(first, a) + held(second, a)
    assert held(first, a + b) == held(first, a) + held(first, b)
    assert held(first, a) == a * kv.bytes_per_token(first, dtype)
    assert kv.state_bytes(first + second) == kv.state_bytes(first) + kv.state_bytes(second)
    assert kv.kv_bytes(first, a, "fp32") == 2 * kv.kv_bytes(first, a, "bf16") == 4 * kv.kv_bytes(first, a, "fp8")


@settings(max_examples=200, deadline=None)
@given(any_model, st.sampled_from((1, 2, 3, 4, 6, 8, 16)), PLAIN_TYPES)
def test_ranks_together_hold_the_whole_and_more_only_where_something_is_copied(layers, ranks, dtype):
    held = layers_on_rank(layers, ranks)
    if held is None:
        assert any(on_rank(layer, ranks) is None for layer in layers)
        assert kv.rank_bytes_per_token(layers, dtype, ranks) is None
        return
    whole = kv.bytes_per_token(layers, dtype)
    together = ranks * kv.bytes_per_token(held, dtype)
    copied = any(layer.latent_dim or layer.heads % ranks for layer in layers)
    assert (together > whole) is (copied and ranks > 1) if copied else together == whole
    assert together >= whole
    assert ranks * kv.state_bytes(held) >= kv.state_bytes(layers)
    assert [layer.kind for layer in held] == [layer.kind for layer in layers]


@given(st.integers(1, 200), st.integers(1, 200))
def test_heads_are_split_or_copied_or_neither(heads, ranks):
    each = split_or_copied(heads, ranks)
    if heads % ranks == 0:
        assert each * ranks == heads
    elif ranks % heads == 0:
        assert each == 1
    else:
        assert each is None
    with pytest.raises(ValueError, match="give 1 or more"):
        on_rank(CacheLayer(kind="full", heads=heads, key_dim=2, value_dim=2), 0)


@settings(max_examples=100, deadline=None)
@given(any_model, st.integers(0, 10**7), PLAIN_TYPES)
def test_the_longest_sequence_fits_and_one_token_more_does_not(layers, budget, dtype):
    limit = 5000
    tokens = kv.tokens_that_fit(layers, budget, dtype, limit=limit)
    assert 0 <= tokens <= limit
    if kv.sequence_bytes(layers, 0, dtype) <= budget:
        assert kv.sequence_bytes(layers, tokens, dtype) <= budget
        assert tokens == limit or kv.sequence_bytes(layers, tokens + 1, dtype) > budget


def test_scales_and_special_types_are_the_engines():
    layer = CacheLayer(kind="full", heads=8, key_dim=128, value_dim=128)
    assert kv.token_bytes(layer, "fp8_token_head") == 8 * 256 + 2 * 8 * 4
    assert kv.token_bytes(layer, "nvfp4") == 2 * 8 * (64 + 8)
    latent = CacheLayer(kind="mla+indexer", latent_dim=512, rope_dim=64, index_dim=128)
    assert kv.token_bytes(latent, "fp8_ds_mla") == 656 + 132
    with pytest.raises(ValueError, match="latents of MLA only"):
        kv.token_bytes(layer, "fp8_ds_mla")


def test_a_hybrids_block_grows_until_its_page_holds_a_state_as_an_engine_printed():
    """vLLM printed 528 tokens and 0.76 % padding for a shape that fits this one (its pull request 37467)."""
    attention_layer = CacheLayer(kind="full", heads=2, key_dim=256, value_dim=256)
    delta = CacheLayer(
        kind="gated-deltanet", state_heads=32, state_unit=128 * 128, conv_columns=3, conv_channels=4096, conv_groups=16,
        conv_group_dim=256,
    )  # fmt: skip
    held = layers_on_rank((attention_layer, delta), 4)
    assert kv.attention_block_tokens(held, "bf16", state="fp32") == 528
    page, token = kv.layer_state_bytes(held[1], state="fp32"), kv.token_bytes(held[0], "bf16")
    assert (page, token) == (536_576, 1024)
    assert round(100 * (528 * token / page - 1), 2) == 0.76


def test_run_lengths_join_equal_neighbours():
    full, none = CacheLayer(kind="full"), CacheLayer(kind="none")
    assert run_lengths((full, full, none, full)) == [("full", 2), ("none", 1), ("full", 1)]
    assert run_lengths(()) == []
    assert len(full_layers(3, 8, 64, 64)) == 3
