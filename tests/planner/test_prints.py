"""What an engine should print of its cache: exact where its memory is given, else bounds that name the unknown."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.checkpoints import load_model
from planner.engines.prints import Range, pool_of, stated_memory
from tests.planner.test_engines import load_dense

DATA = Path(__file__).parents[3] / "shared" / "data" / "model_configs"
SMALL = json.loads((Path(__file__).parents[1] / "fleet" / "library_counts.json").read_text())
shared = [
    pytest.mark.shared,
    pytest.mark.skipif(not DATA.is_dir(), reason="shared/data/model_configs is not beside the project"),
]


def exact(nbytes: int) -> Range:
    return Range(least=Fraction(nbytes), most=Fraction(nbytes))


def test_stated_figures_are_exact_in_bytes_and_rounded_as_printed():
    assert stated_memory("1024 B").exact == 1024
    assert stated_memory("28 GiB").exact == 28 * 2**30
    printed = stated_memory("28.20 GiB")
    assert printed.most - printed.least == Fraction(2**30, 100)
    assert printed.least < Fraction(282, 10) * 2**30 < printed.most


@pytest.mark.parametrize("text", ["", "lots", "-1 GiB", "1e9 B", "28.20", "28.20 gib", "1.5.2 GiB"])
def test_other_texts_are_no_memory(text):
    with pytest.raises(ValueError, match="is no memory"):
        stated_memory(text)


@pytest.mark.parametrize(
    ("name", "memory", "tokens"),
    [
        pytest.param("Devstral-Small-2507", "28.20 GiB", 184_832, marks=shared),
        pytest.param("gpt-oss-20b", "5.38 GiB", None, marks=shared),
    ],
)
def test_public_log_lines_lie_in_the_printed_range(name, memory, tokens):
    """llm-d-planner's table for the 24B model; a model with windows has bounds only."""
    model = load_model(str(DATA / f"{name}.json"))
    pool = pool_of(model, "bf16", tp=1, pp=1, block=16, length=32_768, available=stated_memory(memory))
    if tokens is None:
        assert pool.unknown
        assert pool.tokens.least is None
        assert pool.tokens.most >= 78_384 * 36 // 24  # the log of a sister model of 36 layers: all at full rate
    else:
        assert pool.tokens.least <= tokens <= pool.tokens.most


def test_a_pool_is_whole_blocks_and_concurrency_counts_whole_requests_of_blocks():
    model = load_dense()  # 3 layers, 2 heads of 64: 1,536 B a token
    pool = pool_of(model, "bf16", tp=1, pp=1, block=16, length=100, available=exact(10 * 16 * 1536 + 5))
    assert pool.tokens.exact == 160
    assert pool.concurrency.exact == Fraction(10, 7)
    assert not pool.unknown


def test_ranks_hold_more_tokens_until_heads_are_copied():
    model = load_dense()
    sizes = [
        pool_of(model, "bf16", tp=tp, pp=1, block=16, length=100, available=exact(2**24)).tokens.exact
        for tp in (1, 2, 4)
    ]
    assert sizes[1] in range(2 * int(sizes[0]), 2 * int(sizes[0]) + 32)
    assert sizes[2] == sizes[1]


def test_the_fullest_stage_of_a_pipeline_decides():
    model = load_dense()  # three layers in two stages: two and one
    pool = pool_of(model, "bf16", tp=1, pp=2, block=16, length=100, available=exact(2**24))
    assert pool.tokens.exact == 2**24 // (16 * 1024) * 16


@settings(max_examples=60, deadline=None)
@given(
    nbytes=st.integers(0, 2**36), more=st.integers(0, 2**30), block=st.sampled_from([1, 16, 32]),
    length=st.integers(1, 5000), name=st.sampled_from(["llama", "gpt_oss", "qwen3_next", "deepseek_v3"]),
)  # fmt: skip
def test_more_memory_never_holds_less_and_bounds_are_bounds(tmp_path_factory, nbytes, more, block, length, name):
    path = tmp_path_factory.mktemp("m") / "config.json"
    path.write_text(json.dumps(SMALL[name]["config"]))
    model = load_model(str(path))
    less = pool_of(model, "bf16", tp=1, pp=1, block=block, length=length, available=exact(nbytes))
    bigger = pool_of(model, "bf16", tp=1, pp=1, block=block, length=length, available=exact(nbytes + more))
    assert less.tokens.most <= bigger.tokens.most
    assert less.concurrency.most <= bigger.concurrency.most
    for figure in (less.tokens, less.concurrency):
        assert figure.least is None or figure.least <= figure.most or not less.unknown
    assert (less.tokens.exact is None) == bool(less.unknown)
