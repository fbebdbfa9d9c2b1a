"""The embedded model: the same bits everywhere, far from ties, and dependent on the prompt's KV cache."""

from __future__ import annotations

import hashlib
import json
import math

import numpy as np
import pytest

from executor.tokenizer import byte_tokenizer
from executor.weights import generate, open_weights
from fleet.checkpoints import SEEDED_NAME, load_model, seeded
from tests.seeded_probe import PROMPTS, SHIPPED_PASSES, SHIPPED_PROMPT, SPOILERS, probe

MARGIN = 1e-3


@pytest.fixture(scope="module")
def model():
    return load_model(None)


@pytest.fixture(scope="module")
def weights(model):
    return open_weights(model)


@pytest.fixture(scope="module")
def shipped(model, weights):
    return probe(model, weights.tensor, SHIPPED_PROMPT, SHIPPED_PASSES, fast=False)


def splitmix64(state: int) -> int:
    """SplitMix64's finalizer on Python integers."""
    mask = (1 << 64) - 1
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & mask
    return state ^ (state >> 31)


def test_the_embedded_model_is_loaded_by_none_and_by_name(model):
    assert model.format == "seeded"
    assert model.name == SEEDED_NAME
    assert load_model(SEEDED_NAME) == model
    assert sum(t.nbytes for t in model.tensors) < 2 << 20
    assert model.tensors[0].name == "token_embedding"
    assert not any(t.role == "unread" for t in model.tensors)


def test_the_digest_names_seed_dimensions_and_generator(model):
    text = json.dumps(seeded.spec_document(), sort_keys=True, separators=(",", ":"))
    assert model.digest == hashlib.sha256(text.encode()).hexdigest()
    for change in ({"seed": 34}, {"generator": "other"}, {"dimensions": {}}, {"values": {}}):
        other = json.dumps(seeded.spec_document() | change, sort_keys=True, separators=(",", ":"))
        assert hashlib.sha256(other.encode()).hexdigest() != model.digest


def test_values_equal_the_generator_written_with_python_integers(model, weights):
    mask = (1 << 64) - 1
    gamma = 0x9E3779B97F4A7C15
    for ordinal, spec in enumerate(model.tensors):
        start = splitmix64((seeded.SEED * gamma + ordinal * 0xD1B54A32D192ED03) & mask)
        offset, scale = seeded.VALUES[spec.name]
        flat = weights.tensor(spec.name).reshape(-1)
        for index in {0, 1, spec.n_elements // 2, spec.n_elements - 1}:
            word = splitmix64((start + (index + 1) * gamma) & mask)
            exact = offset + scale * ((word >> 40) - (1 << 23)) / (1 << 23)
            row = index // math.prod(spec.shape[1:])
            if spec.name == "wcls" and not seeded.FIRST_PRINTABLE <= row <= seeded.LAST_PRINTABLE:
                exact *= seeded.UNPRINTABLE_SCALE
            assert flat[index] == np.float32(exact), (spec.name, index)


def test_the_bits_of_all_values_are_those_of_every_other_machine(model, weights):
    digest = hashlib.sha256()
    for spec in model.tensors:
        digest.update(weights.tensor(spec.name).astype("<f4").tobytes())
    assert digest.hexdigest() == "aa94c36df1add3c046f4c8c718364ae2e0d5521705dc46e20477f80072afd281"


def test_another_seed_gives_other_values(model):
    assert not np.array_equal(generate(model, 1)["wq"], generate(model, 2)["wq"])
    one = generate(model, 1)
    assert not np.array_equal(one["wk"], one["wv"])


def test_tensors_are_read_only_float32_of_the_tables_shape(model, weights):
    for spec in model.tensors:
        array = weights.tensor(spec.name)
        assert array.shape == spec.shape
        assert array.dtype == np.float32
        assert array.flags.c_contiguous
        assert not array.flags.writeable
        assert array.nbytes == spec.nbytes
    assert weights.check() == []


def test_the_shipped_prompt_has_a_long_prefill_and_a_long_decode():
    n_prompt = len(byte_tokenizer().encode(SHIPPED_PROMPT))
    assert n_prompt >= 8
    assert SHIPPED_PASSES - n_prompt >= 24


def test_every_margin_of_the_shipped_prompt_is_clear(shipped):
    assert len(shipped.clean.margins) == SHIPPED_PASSES
    assert not shipped.clean.stopped_on_bos
    assert shipped.min_margin > MARGIN


def test_rounding_moves_logits_far_less_than_the_margins(model, weights, shipped):
    other = probe(model, weights.tensor, SHIPPED_PROMPT, SHIPPED_PASSES, fast=True, spoilers=())
    assert other.clean.tokens == shipped.clean.tokens
    moved = max(abs(float(a) - float(b)) for a, b in zip(other.clean.top1, shipped.clean.top1, strict=True))
    assert 0 < moved < MARGIN < shipped.min_margin


def test_the_chosen_tokens_are_varied_and_printable(shipped):
    n_prompt = len(byte_tokenizer().encode(SHIPPED_PROMPT))
    chosen = shipped.clean.tokens[n_prompt:]
    assert len(set(chosen)) >= 20
    assert max(chosen.count(token) for token in set(chosen)) <= len(chosen) // 4
    text = byte_tokenizer().decode(shipped.clean.tokens)
    assert text.decode("ascii").startswith(SHIPPED_PROMPT)
    assert text[:-1].decode("ascii").isprintable()
    assert len(text) == len(SHIPPED_PROMPT) + len(chosen) + 1


@pytest.mark.parametrize("spoiler", sorted(SPOILERS))
def test_a_spoiled_cache_changes_a_token_within_eight_decode_passes(shipped, spoiler):
    change = shipped.first_change[spoiler]
    assert change is not None
    assert change <= 8


def test_an_unspoiled_cache_changes_no_token(model, weights, shipped, monkeypatch):
    monkeypatch.setitem(SPOILERS, "nothing", lambda n: lambda transformer: None)
    again = probe(model, weights.tensor, SHIPPED_PROMPT, SHIPPED_PASSES, fast=False, spoilers=("nothing",))
    assert again.first_change == {"nothing": None}


def test_most_other_prompts_are_clear_and_need_the_cache_too(model, weights):
    clear = changed = 0
    for prompt in PROMPTS:
        passes = len(prompt.encode()) + 2 + 24
        result = probe(model, weights.tensor, prompt, passes, fast=True, spoilers=("zeroed",))
        clear += result.min_margin > MARGIN
        changed += result.first_change["zeroed"] is not None
    assert len(PROMPTS) == 50
    assert clear >= 45
    assert changed >= 45
