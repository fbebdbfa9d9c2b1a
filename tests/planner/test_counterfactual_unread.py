"""Refusals beside what nobody read of an engine: a change leaves that out, with the smallest other one beside it."""

from __future__ import annotations

import functools
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fleet.checkpoints import load_model
from fleet.model import Model
from fleet.placement import Placement
from planner.admit import Ask, admit
from planner.counterfactual import parts_of
from planner.engines import ENGINES, engine_extent, engine_unknown
from planner.fixes import counterfactuals, offered
from planner.request import Request, Unpriced
from tests.planner.fleets import llama2c
from tests.planner.test_counterfactual import mesh

PLACED = Placement(prefill="gpu:0", decode="gpu:1")
LORA = Unpriced("serve.sh:3 --enable-lora", "adapters, not priced")
DRAFT = Unpriced("serve.sh:4 --speculative-config", "a draft model and its cache, not priced")
SHAPE = {
    "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 8,
    "intermediate_size": 160, "vocab_size": 512, "max_position_embeddings": 512, "torch_dtype": "bfloat16",
}  # fmt: skip
WINDOWS = {"model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"], "sliding_window": 16}
STATES = {
    "model_type": "qwen3_next", "architectures": ["Qwen3NextForCausalLM"], "linear_num_key_heads": 4,
    "linear_num_value_heads": 8, "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32, "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True,
}  # fmt: skip


@functools.cache
def model(kind: str) -> Model:
    """A small model whose layers have windows, or states, by its config.json."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(SHAPE | (WINDOWS if kind == "windows" else STATES)))
        return load_model(str(path))


UNREAD = [
    (name, kind) for name in ENGINES for kind in ("windows", "states") if engine_unknown(name, model(kind))
]  # fmt: skip


def test_there_are_engines_whose_way_with_windows_or_states_was_not_read() -> None:
    for known in (("trtllm", "states"), ("sglang", "windows"), ("vllm-nixl", "states"), ("mooncake", "windows")):
        assert known in UNREAD
    assert not any(model(kind).unknown for kind in ("windows", "states"))


@settings(deadline=None, max_examples=25)
@given(
    st.sampled_from(UNREAD), st.sampled_from([None, 8, 16]), st.integers(1, 64), st.sampled_from([8, 200]),
    st.lists(st.integers(200, 2_000), min_size=2, max_size=4), st.sampled_from(["direct", "unknown"]),
)  # fmt: skip
def test_every_refusal_beside_an_unread_engine_has_changes_that_are_admitted(
    unread: tuple[str, str], unit: int | None, batch: int, prompt: int, sizes: list[int], peer: str
) -> None:
    engine, kind = unread
    request = Request(
        prompt_tokens=prompt, new_tokens=20, batch=batch, engine=engine, unit_tokens=unit,
        kv_extent=engine_extent(engine, unit),
    )  # fmt: skip
    fleet = mesh([size * 1024 for size in sizes], peer=peer, granule=1)
    answer = admit(Ask(fleet=fleet, model=model(kind), request=request, placement=PLACED))
    assume(answer.verdict == "refused")
    told, documents, _ = counterfactuals(answer)
    changes = offered(answer)
    assert documents
    assert [change.document for change in changes] == list(documents)
    assert all(reason.fix == documents[0] for reason in told.reasons if reason.severity == "error")
    for change in changes:
        first, *rest = parts_of(change.document)
        of_fleet = any(part.get("field") and part["to"] is not None for part in rest)
        assert ("patch" in first, any("patch" in part for part in rest)) == (of_fleet, False)
        assert told_of(first) == {"flag": "--engine", "from": engine, "to": "exact"}
        assert admit(change.ask).verdict == "admitted"
        assert change.ask.request.kv_extent == engine_extent("exact", unit)


def told_of(part: dict[str, Any]) -> dict[str, Any]:
    """A part without the patch of the whole change, which stands in the first."""
    return {name: value for name, value in part.items() if name != "patch"}


def refused(request: Request, kind: str = "states", capacity: int = 700_000) -> Ask:
    return Ask(fleet=mesh([capacity] * 2), model=model(kind), request=request, placement=PLACED)


def test_the_smallest_batch_beside_the_exact_engine_is_told_and_one_more_is_refused() -> None:
    request = Request(prompt_tokens=100, new_tokens=20, batch=64, engine="trtllm", kv_extent="blocks:32")
    ask = refused(request)
    told, documents, table = counterfactuals(admit(ask))
    assert table[0]["dimension"] == "engine"
    assert table[0]["change"] is None
    assert table[0]["why"].startswith("not alone: gpu:0 is short by ")
    [fix] = [each for each in documents if [part.get("flag") for part in parts_of(each)] == ["--engine", "--batch"]]
    count = fix["and"][0]["to"]
    for batch, verdict in ((count, "admitted"), (count + 1, "refused")):
        exact = replace(request, engine="exact", kv_extent="filled", batch=batch)
        assert admit(replace(ask, request=exact)).verdict == verdict
    assert told.verdict == "refused"


def test_the_exact_engine_alone_is_told_where_whole_blocks_are_what_is_short() -> None:
    request = Request(prompt_tokens=97, new_tokens=20, batch=64, engine="trtllm", kv_extent="blocks:32")
    exact = replace(request, engine="exact", kv_extent="filled")
    prediction = admit(refused(exact, capacity=1)).prediction
    assert prediction is not None
    ask = refused(request, capacity=max(each.total_bytes for each in prediction.footprints) * 10 // 9 + 1)
    assert admit(ask).verdict == "refused"
    _, documents, table = counterfactuals(admit(ask))
    assert list(documents) == [{"flag": "--engine", "from": "trtllm", "to": "exact"}]
    assert [row["dimension"] for row in table] == ["engine"]


def leaves_out(unpriced: Unpriced) -> dict[str, Any]:
    return {"field": unpriced.field, "from": unpriced.flag, "to": None}


@pytest.mark.parametrize("unpriced", [(LORA,), (LORA, DRAFT)])
def test_flags_of_a_launch_line_that_nobody_prices_are_left_out(unpriced: tuple[Unpriced, ...]) -> None:
    request = Request(prompt_tokens=20, steps=200, batch=40, unpriced=unpriced)
    ask = Ask(fleet=mesh([1_500_000] * 2), model=llama2c(), request=request, placement=PLACED)
    _, documents, _ = counterfactuals(admit(ask))
    expected = [leaves_out(each) for each in unpriced]
    assert documents
    for change in offered(admit(ask)):
        assert [told_of(part) for part in parts_of(change.document)[: len(expected)]] == expected
        assert admit(change.ask).verdict == "admitted"
    batch = next(part["to"] for part in parts_of(documents[0]) if part.get("flag") == "--batch")
    for count, verdict in ((batch, "admitted"), (batch + 1, "refused")):
        assert admit(replace(ask, request=replace(request, batch=count, unpriced=()))).verdict == verdict


def test_an_engine_that_was_read_is_never_exchanged() -> None:
    request = Request(prompt_tokens=100, new_tokens=20, batch=64, engine="trtllm", kv_extent="blocks:32")
    ask = Ask(fleet=mesh([700_000] * 2), model=llama2c(), request=request, placement=PLACED)
    _, documents, table = counterfactuals(admit(ask))
    assert documents
    assert "engine" not in {row["dimension"] for row in table}
    assert not any(part.get("flag") == "--engine" for each in documents for part in parts_of(each))


@functools.cache
def uneven() -> Model:
    """A Llama whose feed-forward divides among 4 ranks and not among 8."""
    config = SHAPE | {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "intermediate_size": 164}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(config | {"num_key_value_heads": 8}))
        return load_model(str(path))


@pytest.mark.parametrize(("batch", "alone"), [(2, True), (4_000, False)])
def test_ranks_among_which_a_division_is_unknown_become_fewer(batch: int, alone: bool) -> None:
    names = [f"gpu:{number}" for number in range(16)]
    placed = Placement(prefill=",".join(names[:8]), decode=",".join(names[8:]), tp=(8, 8))
    request = Request(prompt_tokens=100, new_tokens=20, batch=batch)
    fleet = mesh([500_000] * 16, granule=1)
    ask = Ask(fleet=fleet, model=uneven(), request=request, placement=placed)
    if alone:  # short on one device of the last ranks, which four ranks do not have
        devices = tuple(replace(d, in_use=499_999) if d.id == "gpu:15" else d for d in fleet.devices)
        ask = replace(ask, fleet=replace(fleet, devices=devices))
    answer = admit(ask)
    assert {"DIVISION_UNKNOWN"} < {reason.code for reason in answer.reasons}
    assert answer.verdict == "refused"
    _, documents, table = counterfactuals(answer)
    assert table[0]["dimension"] == "known degree"
    assert (table[0]["change"] is not None) == alone
    for change in offered(answer):
        parts = {part.get("flag"): part["to"] for part in parts_of(change.document)}
        assert parts["--tp"] == 4
        assert parts["--decode"] == "gpu:8,gpu:9,gpu:10,gpu:11"
        assert admit(change.ask).verdict == "admitted"
    assert documents
