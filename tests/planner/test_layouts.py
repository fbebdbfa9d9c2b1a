"""The layout packed16 as the planner prices it: against the executor's own arrays, and refused where it cannot hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.packed.layout import ALIGNMENT, packed_kv, packed_weight
from fleet.errors import DescriptionError
from fleet.model import Model
from fleet.placement import Placement
from planner.admit import Admission, Ask, admit
from planner.orders import ArenaOrder
from planner.plan import make_orders, prediction_document
from planner.request import Request, resolve
from tests.planner.fleets import llama2c, pair

SPLIT = Placement(prefill="gpu:0", decode="gpu:1")


def admitted(model: Model, layout: str, placement: Placement = SPLIT, **request: Any) -> Admission:
    asked = Request(**({"prompt_tokens": 5, "steps": 20, "layout": layout} | request))  # type: ignore[arg-type]  # table
    return admit(Ask(fleet=pair(), model=model, request=asked, placement=placement))


def end_of(arena: ArenaOrder, model: Model) -> int:
    """Where the last buffer of a packed arena ends, by the shapes of the executor's arrays."""
    specs = {f"weights/{spec.name}": spec for spec in model.tensors}
    end = 0
    for buffer in arena.buffers:
        nbytes = 4
        for extent in buffer.shape:
            nbytes *= extent
        if buffer.name.startswith("kv/"):
            kind: Any = buffer.name[-1]
            nbytes = packed_kv(kind, model.n_layers, buffer.shape[1], model.n_kv_heads, model.head_dim).nbytes
        elif buffer.name in specs and specs[buffer.name].role != "norm":
            packed = packed_weight(buffer.shape)
            assert packed is not None
            nbytes = packed.nbytes
        end = -(-end // ALIGNMENT) * ALIGNMENT + nbytes
    return end


@given(
    heads=st.sampled_from([(1, 1), (2, 1), (4, 2), (6, 3), (7, 7)]), head_dim=st.integers(1, 20).map(lambda n: 2 * n),
    hidden=st.integers(1, 70), layers=st.integers(1, 3), vocab=st.integers(20, 70), positions=st.integers(20, 64),
    chunk=st.integers(1, 9), shared=st.booleans(), oracle=st.booleans(),
    extent=st.sampled_from(["filled", "allocated", "blocks:7"]),
)  # fmt: skip
def test_planned_bytes_are_those_of_the_executors_arrays(
    heads: tuple[int, int], head_dim: int, hidden: int, layers: int, vocab: int, positions: int, chunk: int,
    shared: bool, oracle: bool, extent: str,
) -> None:  # fmt: skip
    model = llama2c(heads[0] * head_dim, hidden, layers, *heads, vocab=vocab, seq_len=64, shared=shared)
    placement = Placement(prefill="gpu:0", decode="gpu:0") if oracle else SPLIT
    asked = {"positions": positions, "kv_extent": extent, "prefill_chunk": chunk}
    packed, plain = (admitted(model, layout, placement, **asked) for layout in ("packed16", "plain"))
    assert packed.verdict == plain.verdict == "admitted"
    assert packed.prediction is not None
    assert plain.prediction is not None
    for arena, held, wire in zip(
        packed.prediction.arenas, packed.prediction.footprints, plain.prediction.footprints, strict=True
    ):
        assert held.resident_bytes == end_of(arena, model)
        assert {line: held.lines[line] for line in ("weights", "kv_cache", "workspace", "runtime")} == {
            line: wire.lines[line] for line in ("weights", "kv_cache", "workspace", "runtime")
        }
        assert wire.lines["layout_padding"] == 0
        rows = chunk if arena.device == "gpu:0" else 1
        assert held.lines["activations"] - wire.lines["activations"] == 2 * 4 * rows * model.kv_dim
    documents = [prediction_document(each) for each in (packed, plain)]
    for key in ("waybill", "edges", "handoff", "dispatches", "passes"):
        assert documents[0][key] == documents[1][key], key


def test_orders_name_the_layout_and_keep_wire_shapes() -> None:
    packed, plain = (make_orders(admitted(llama2c(), layout)) for layout in ("packed16", "plain"))
    assert packed.workload.layout == "packed16"
    assert {step.layout for step in packed.steps if step.op == "handoff"} == {"packed16"}
    for one, other in zip(packed.arenas, plain.arenas, strict=True):
        shapes = {b.name: b.shape for b in one.buffers}
        assert {name: shapes[name] for name in (b.name for b in other.buffers)} == {
            b.name: b.shape for b in other.buffers
        }
        assert set(shapes) - {b.name for b in other.buffers} == {"act/k", "act/v"}
        named = {b.name for b in one.buffers if b.layout == "packed16"}
        assert {name.partition("/")[0] for name in named} == {"weights", "kv"}
        assert not {name for name in named if "rms" in name}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"attention": "host"}, "attention: device"),
        ({"batch": 2}, "one sequence"),
        ({"weights_dtype": "bf16"}, "--weights-dtype fp32"),
        ({"kv_dtype": "fp8"}, "--kv-dtype fp32"),
    ],
)
def test_what_it_cannot_hold_is_refused_in_words(change: dict[str, Any], words: str) -> None:
    with pytest.raises(DescriptionError, match=words):
        admitted(llama2c(), "packed16", **change)
    assert admitted(llama2c(), "plain", **change).workload is not None


def test_other_formats_are_refused_in_words() -> None:
    model = replace(llama2c(), format="hf-config")
    with pytest.raises(DescriptionError, match=r"llama2\.c checkpoints only"):
        resolve(Request(prompt_tokens=5, steps=20, layout="packed16"), model)
