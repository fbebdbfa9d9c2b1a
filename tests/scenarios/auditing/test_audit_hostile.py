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


def transfers(mib, pieces, count=80, extra="", unit="MB"):
    return (
        f"INFO 10:00:00 KV Transfer metrics: Num successful transfers={count}, Avg xfer time (ms)=173.794, "
        f"Avg {unit} per transfer={mib}, Avg number of descriptors={pieces}{extra}"
    )


DENSE = {
    "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_size": 5120, "intermediate_size": 25600,
    "num_attention_heads": 64, "num_key_value_heads": 8, "num_hidden_layers": 64, "head_dim": 128,
    "vocab_size": 151936, "max_position_embeddings": 40960, "torch_dtype": "bfloat16",
}  # fmt: skip
LATENT = {
    "model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"], "hidden_size": 7168, "kv_lora_rank": 512,
    "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "q_lora_rank": 1536, "num_hidden_layers": 61,
    "num_attention_heads": 128, "num_key_value_heads": 128, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1, "first_k_dense_replace": 3,
    "moe_layer_freq": 1, "vocab_size": 129280, "max_position_embeddings": 163840, "torch_dtype": "bfloat16",
}  # fmt: skip
# 313 blocks of the public line, cut otherwise: (MiB, descriptors), config, what is asked, (layers, blocks, tokens).
# A block of 16 tokens of K or V of 2 heads of 128 x 2 B is 8,192 B: 64 x 2 x 313 of them are 313 MiB.
# Of fp8 it is 4,096 B; of 8 ranks 4,096 B; of both 2,048 B. Joined, K and V are 16,384 B in half as many regions.
# 61 layers of a latent of 576 x 2 B in blocks of 64 tokens: 73,728 B x 61 x 313 = 1,407,688,704 B = 1,342.477 MiB.
CUTS = {
    "public": ((313.0, 40064.0), DENSE, {"tp": 4, "kv_dtype": "bf16", "block": 16}, (64, 313, [4993, 5008])),
    "fp8": ((156.5, 40064.0), DENSE, {"tp": 4, "kv_dtype": "fp8", "block": 16}, (64, 313, [4993, 5008])),
    "eight ranks": ((156.5, 40064.0), DENSE, {"tp": 8, "kv_dtype": "bf16", "block": 16}, (64, 313, [4993, 5008])),
    "eight ranks, fp8": ((78.25, 40064.0), DENSE, {"tp": 8, "kv_dtype": "fp8", "block": 16}, (64, 313, [4993, 5008])),
    "blocks of 64": ((316.0, 10112.0), DENSE, {"tp": 4, "kv_dtype": "bf16", "block": 64}, (64, 79, [4993, 5056])),
    "joined": ((313.0, 20032.0), DENSE, {"tp": 4, "kv_dtype": "bf16", "block": 16}, (64, 313, [4993, 5008])),
    "latent": ((1342.477, 19093.0), LATENT, {"tp": 1, "kv_dtype": "bf16", "block": 64}, (61, 313, [19969, 20032])),
    "latent, fp8": ((671.238, 19093.0), LATENT, {"tp": 4, "kv_dtype": "fp8", "block": 64}, (61, 313, [19969, 20032])),
}


@pytest.mark.parametrize("name", CUTS)
def test_variations_of_the_public_line_are_read_by_hand_arithmetic(tmp_path, name):
    (mib, pieces), config, asked, (layers, blocks, tokens) = CUTS[name]
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = load_model(str(tmp_path / "config.json"))
    path = tmp_path / "engine.log"
    path.write_text(transfers(mib, pieces))
    found = audit(str(path), Asked(model=model, narrowed=Narrowed(**asked)))
    assert found["verdict"] == "consistent", found["findings"]
    (whole,) = [row for row in found["model"]["readings"] if row["pp"] == 1]
    assert (whole["layers"], whole["kv_joined"]) == (layers, name == "joined")
    assert whole["transfers"] == [{"blocks": [blocks, blocks], "tokens": tokens}]
    per_layer = 1 if "latent" in name or name == "joined" else 2
    assert (layers, per_layer, [blocks]) in [
        (row["layers"], row["regions_per_layer"], row["blocks"]) for row in found["readings"]
    ]


@pytest.mark.parametrize(("unit", "mib"), [("MiB", 313.0), ("GiB", 0.306), ("KiB", 320512.0)])
def test_sizes_in_a_named_power_of_two_are_read(tmp_path, unit, mib):
    path = tmp_path / "engine.log"
    path.write_text(transfers(mib, 40064.0, unit=unit))
    low, high = audit(str(path), Asked())["log"]["parts"][0]["bytes"]
    assert low <= 80 * 313 * 2**20 <= high or unit == "GiB"
    assert unit != "GiB" or (low, high) == (26_242_250_179, 26_328_149_524), "80 x (0.3055 to 0.3065) x 2^30"


@pytest.mark.parametrize("unit", ["GB", "KB", "TB", "B"])
def test_sizes_in_a_unit_of_unknown_base_are_never_guessed(tmp_path, unit):
    path = tmp_path / "engine.log"
    path.write_text(transfers(0.313, 40064.0, unit=unit))
    with pytest.raises(DescriptionError, match=f"sizes in {unit}: whether"):
        audit(str(path), Asked())


def test_mooncake_under_vllm_and_sends_of_tensorrt_llm_are_of_a_cache_whose_descriptors_tell_nothing(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(DENSE))
    model = load_model(str(tmp_path / "config.json"))
    path = tmp_path / "engine.log"
    asked = Asked(model=model, narrowed=Narrowed(tp=4, kv_dtype="bf16", block=16))
    sent = f"2026-03-13 14:22:16.1,KVSendTask,42,0,{313 * 2**20},32768,9,0.523,1.234,5.678,8.901,207.45"
    for text in (transfers(313.0, 112.0, 1, ", Num failed recvs=0"), sent):
        path.write_text(text)
        found = audit(str(path), asked)
        assert found["descriptor_bytes"] is None
        assert found["readings"] == []
        (whole,) = [row for row in found["model"]["readings"] if row["pp"] == 1]
        assert whole["transfers"] == [{"blocks": [313, 313], "tokens": [4993, 5008]}]
