"""Figures that are no numbers, times below what is printed, and models of which only the weights are unknown."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from fleet.checkpoints import load_model
from fleet.errors import DescriptionError
from scenarios.auditing import Asked, Narrowed, audit

LINE = (
    "KV Transfer metrics: Num successful transfers=4, Avg xfer time (ms)=1.381, P90 xfer time (ms)=2.601, Avg post "
    "time (ms)=0.672, P90 post time (ms)=0.801, Avg MB per transfer=2.25, Throughput (MB/s)=1629.549, Avg number of "
    "descriptors=72.0"
)
TRACE = "From backend UCX Completed Xfer with {} descriptors of total size {}B in {}us\n"


def audited(tmp_path: Path, text: str, **asked):
    path = tmp_path / "input.log"
    path.write_text(text)
    return audit(str(path), Asked(**asked))


def codes(document):
    return [each["code"] for each in document["findings"]]


@pytest.mark.parametrize("figure", ["1.2.3", "....", "."])
@pytest.mark.parametrize("name", ["Throughput (MB/s)=1629.549", "Avg post time (ms)=0.672"])
def test_a_figure_beside_the_sizes_that_is_no_number_is_left_out(tmp_path, name, figure):
    """Sizes are read all the same."""
    document = audited(tmp_path, LINE.replace(name, name.partition("=")[0] + "=" + figure))
    assert document["descriptors_hold"][0]["bytes"] == 32768
    assert codes(document) == []


def test_a_trace_of_less_than_a_microsecond_is_no_wonder_for_few_bytes(tmp_path):
    assert audited(tmp_path, TRACE.format(1, 64, 0))["findings"] == []


def test_a_trace_of_less_than_a_microsecond_is_impossible_for_many_bytes(tmp_path):
    assert codes(audited(tmp_path, TRACE.format(72, 2359296, 0))) == ["RATE_ABOVE_LINKS"]


def test_one_microsecond_may_be_nearly_two(tmp_path):
    """1.7 MB in 1 us would be above every link, in 1.99 us it is not."""
    assert audited(tmp_path, TRACE.format(1, 1_700_000, 1))["findings"] == []


def test_bytes_of_a_request_stand_beside_each_number_of_ranks(tmp_path):
    (part,) = audited(tmp_path, TRACE.format(72, 2359296, 1381))["log"]["parts"]
    assert part["bytes_per_request"] == [{"ranks": 1, "requests": 1, "bytes": [2359296, 2359296]}]
    (part,) = audited(tmp_path, LINE)["log"]["parts"]
    told = {row["ranks"]: (row["requests"], row["bytes"]) for row in part["bytes_per_request"]}
    assert set(told) == {1, 2, 4}
    assert told[4] == (1, part["bytes"])
    assert told[2][1][0] <= 2 * 2359296 <= told[2][1][1]


def test_a_model_of_unverified_weights_narrows_where_its_cache_is_known(tmp_path):
    config = {
        "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_size": 4096, "intermediate_size": 12288,
        "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
        "vocab_size": 151936, "max_position_embeddings": 40960, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", "quantization_config": {"quant_method": "never_heard_of"},
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    model = load_model(str(path))
    assert model.unknown
    found = audited(tmp_path, LINE, model=model, narrowed=Narrowed(tp=1, kv_dtype="bf16"))["model"]
    assert found["unknown"] is None
    assert (found["readings"][0]["block_tokens"], found["readings"][0]["layers"]) == (16, 36)


def test_a_model_that_is_not_understood_is_said_to_be_so(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "never_heard_of", "architectures": ["NeverForCausalLM"]}))
    document = audited(tmp_path, LINE, model=load_model(str(path)))
    assert document["model"]["unknown"]
    assert document["verdict"] == "inconclusive"


def test_a_profile_in_a_pipe_is_told_and_not_waited_for(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(b"SQLite format 3\0" + bytes(5000),))
    writer.start()
    with pytest.raises(DescriptionError, match="from a file only"):
        audit(str(pipe), Asked())
    writer.join()
