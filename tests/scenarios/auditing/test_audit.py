"""What printed figures of transfers allow: public lines with known answers, a slow oracle, and what cannot be true."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.checkpoints import load_model
from scenarios.auditing import Asked, Narrowed, audit
from scenarios.auditing.text import audit_text

SLOW = (80, 313.0, 40064.0, 173.794)
"""vllm-project/vllm#34054: transfers, MiB, descriptors, milliseconds."""
BLOCK = (4, 2.25, 72.0, 1.381)
"""vllm-project/vllm#41230."""


def line(count, mib, pieces, ms, more=""):
    return (
        f"KV Transfer metrics: Num successful transfers={count}, Avg xfer time (ms)={ms}, "
        f"Avg MB per transfer={mib}, Avg number of descriptors={pieces}{more}"
    )


@pytest.fixture
def audited(tmp_path):
    def run(*lines, **asked):
        path = tmp_path / "engine.log"
        path.write_text("\n".join(lines))
        return audit(str(path), Asked(**asked))

    return run


def config(tmp_path, **more):
    """A dense model of 64 layers with 8 KV heads of 128, as the public line was of."""
    path = tmp_path / "config.json"
    dims = {"hidden_size": 5120, "intermediate_size": 25600, "num_attention_heads": 64, "num_key_value_heads": 8}
    dims |= {"num_hidden_layers": 64, "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960}
    dims |= {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "torch_dtype": "bfloat16"}
    path.write_text(json.dumps(dims | more))
    return load_model(str(path))


def shapes(document):
    return {(row["layers"], row["regions_per_layer"], *row["blocks"]) for row in document["readings"]}


def test_the_public_line_of_64_layers_is_read(audited):
    found = audited(line(*SLOW))
    assert [held["bytes"] for held in found["descriptors_hold"]] == [8192]
    assert (64, 2, 313) in shapes(found)
    assert len(found["readings"]) == 15
    assert found["log"]["parts"][0]["bytes_per_transfer"][0] <= 313 << 20 <= found["log"]["parts"][0]["bytes"][1]
    assert found["verdict"] == "consistent"
    assert "64 layers x K,V x 313 blocks of 8,192 B" in audit_text(found)


def test_the_public_line_of_one_block_is_read(audited):
    found = audited(line(*BLOCK))
    assert [held["bytes"] for held in found["descriptors_hold"]] == [32768]
    assert (36, 2, 1) in shapes(found)
    assert {
        key: row[key] for row in found["descriptors_hold"][0]["tokens"] if row["block_tokens"] == 16
        for key in ("block_tokens", "bytes_per_token")
    } == {"block_tokens": 16, "bytes_per_token": 2048}  # fmt: skip


def test_a_rate_of_two_gigabytes_a_second_was_not_nvlink(audited):
    posted = ", Avg post time (ms)=129.127, Throughput (MB/s)=1800.983"
    (rate,) = audited(line(*SLOW, posted))["rates"]
    assert 1.88e9 < rate["bytes_per_s"][0] < rate["bytes_per_s"][1] < 1.9e9
    assert 7.3e9 < rate["moving_bytes_per_s"][0] < 7.4e9
    standing = {link["kind"]: link["standing"] for link in rate["links"]}
    assert standing["nvlink"] == "far below"
    assert standing["pcie"] == "possible"
    claimed = audited(line(*SLOW, posted), link="nvlink")
    assert claimed["verdict"] == "contradicted"
    assert [each["code"] for each in claimed["findings"]] == ["NOT_THIS_LINK"]
    named = audited("UCX_TLS=cuda_ipc,tcp", line(*SLOW, posted))
    assert ([each["code"] for each in named["findings"]], named["verdict"]) == (["NAMED_LINK"], "consistent")


def test_a_model_narrows_the_readings_to_its_cuts(audited, tmp_path):
    model = config(tmp_path)
    found = audited(line(*SLOW), model=model, narrowed=Narrowed(tp=4, kv_dtype="bf16", block=16))
    (whole,) = [row for row in found["model"]["readings"] if row["pp"] == 1]
    assert whole["transfers"] == [{"blocks": [313, 313], "tokens": [4993, 5008]}]
    assert (whole["layers"], whole["descriptor_bytes"]) == (64, 8192)
    assert {row["pp"] for row in found["model"]["readings"]} == {1, 2, 4, 8, 16}


def test_metrics_of_another_model_are_told(audited, tmp_path):
    other = config(tmp_path, num_hidden_layers=47)
    found = audited(line(*BLOCK), model=other)
    assert [each["code"] for each in found["findings"]] == ["ANOTHER_MODEL"]
    assert found["verdict"] == "contradicted"


def test_a_model_with_windows_that_does_not_fit_may_be_of_another_version(audited, tmp_path):
    windows = {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 4096}
    found = audited(line(*BLOCK), model=config(tmp_path, num_hidden_layers=47, **windows))
    assert [(each["code"], each["severity"]) for each in found["findings"]] == [("ANOTHER_MODEL", "warning")]
    assert found["verdict"] == "inconclusive"


@pytest.mark.parametrize("length", [1, 1099, 40_960])
def test_bytes_of_a_token_are_those_of_the_pool_by_each_rule_of_vllm(audited, length):
    """Tokens are whole blocks in older versions, concurrency * length in the newest."""
    available, block, token = 54.25 * 2**30, 16, 147_456
    blocks = int(available // (block * token))
    turns = blocks / -(-length // block)
    for tokens, printed in ((blocks * block, blocks * block / length), (blocks * block, turns),
                            (int(turns * length), turns)):  # fmt: skip
        found = audited(
            f"Available KV cache memory: 54.25 GiB\nGPU KV cache size: {tokens:,} tokens, "
            f"Maximum concurrency for {length:,} tokens per request: {printed:.2f}x"
        )
        low, high = found["pool"]["bytes_per_token"]
        assert low <= token <= high
        assert found["findings"] == []


def test_a_profile_of_all_copies_is_never_divided_by_a_model(tmp_path):
    log = tmp_path / "log"
    log.write_text("[Metrics] Transfer Engine Stats (over last 5s): Throughput: 7.00 MB/s\n")
    found = audit(str(log), Asked(model=config(tmp_path)))
    assert "counts all that is copied" in found["model"]["unknown"]
    assert found["verdict"] == "inconclusive"


def test_a_second_line_narrows_the_layers_of_the_first(audited):
    alone, both = audited(line(*SLOW)), audited(line(*SLOW), line(8, 1.0, 128.0, 2.0))
    assert shapes(both) < {(layers, kind, blocks, *rest) for layers, kind, *rest in shapes(both) for blocks in rest} | {
        (row["layers"], row["regions_per_layer"], *row["blocks"]) for row in both["readings"]
    } | shapes(alone)
    assert {row["regions"] for row in both["readings"]} == {1, 2, 4, 8, 16, 32, 64, 128}


def test_transfers_that_differ_leave_only_what_divides_the_total(audited):
    found = audited(line(4, 2.266, 72.5, 1.4))
    assert found["readings"] == []
    assert set(found["regions_if_transfers_differ"]) == {n for n in range(1, 513) if 290 % n == 0}


def test_lines_of_two_engines_fit_no_size_and_nothing_is_said(audited):
    found = audited(line(*SLOW), line(*BLOCK))
    assert found["verdict"] == "inconclusive"
    assert found["findings"][-1]["code"] == "SIZES_DIFFER"
    assert found["descriptors_hold"] == []


@pytest.mark.parametrize(
    ("told", "code"),
    [
        (line(4, 300000.0, 72.0, 1.0), "RATE_ABOVE_MEMORY"),
        (line(4, 2000.0, 72.0, 1.0), "RATE_ABOVE_LINKS"),
        (line(4, 313.0, 72.0, 0.0), "RATE_ABOVE_MEMORY"),
        (line(*BLOCK, ", Avg post time (ms)=9.0"), "POST_ABOVE_TRANSFER"),
    ],
)
def test_what_cannot_be_true_is_flagged(audited, told, code):
    found = audited(told)
    assert code in [each["code"] for each in found["findings"]]
    assert found["verdict"] == "contradicted"


def test_a_line_that_contradicts_its_own_rate_is_a_warning(audited):
    found = audited(line(*BLOCK, ", Throughput (MB/s)=9000.0"))
    assert [each["code"] for each in found["findings"]] == ["RATE_CONTRADICTS"]
    assert found["verdict"] == "consistent"


@pytest.mark.parametrize("rate", [1800.9, 1801.1, 9000.0, 0.1])
def test_a_rate_that_is_contradicted_by_little_is_told_with_the_digits_that_differ(audited, rate):
    (found,) = audited(line(80, 313.0, 40064.0, 173.794, f", Throughput (MB/s)={rate}"))["findings"]
    assert found["code"] == "RATE_CONTRADICTS"
    stated, reckoned = re.findall(r"([0-9.,]+) GB/s (?:at most|or more)", found["message"])
    assert stated != reckoned


def test_a_pool_narrows_tokens_and_a_hybrids_pool_is_not_divided(audited):
    pool = ["Available KV cache memory: 28.20 GiB", "GPU KV cache size: 205,344 tokens"]
    low, high = audited(*pool)["pool"]["bytes_per_token"]
    assert low < 147_456 < high
    both = audited(*pool, line(*BLOCK))
    assert {"layers": 36, "blocks": [1], "block_tokens": [16]}.items() <= both["readings"][0].items()
    hybrid = ["GPU KV cache size: 290,864 tokens", "Maximum concurrency for 32,768 tokens per request: 33.04x"]
    told = audited("Available KV cache memory: 28.20 GiB", *hybrid)
    assert told["pool"] is None
    assert "POOL_DISAGREES" in [each["code"] for each in told["findings"]]


def test_a_source_without_bytes_or_times_tells_nothing(audited):
    assert audited("vLLM API server version 0.11.0")["verdict"] == "inconclusive"


@settings(max_examples=40, deadline=None)
@given(
    layers=st.integers(1, 128), blocks=st.integers(1, 3000), tokens=st.sampled_from([16, 32, 64]),
    width=st.integers(1, 64), count=st.integers(1, 200), apart=st.booleans(),
)  # fmt: skip
def test_the_truth_is_always_among_the_readings(tmp_path_factory, layers, blocks, tokens, width, count, apart):
    """Any engine's transfers, printed as vLLM rounds them: its own layers, blocks and size are listed."""
    size, regions = tokens * width * 16, layers * (2 if apart else 1)
    pieces = blocks * regions
    told = line(count, round(size * pieces / 2**20, 3), round(float(pieces), 1), 5.0)
    path = tmp_path_factory.mktemp("law") / "log"
    path.write_text(told)
    found = audit(str(path), Asked())
    assert (layers, 2 if apart else 1, blocks) in shapes(found)
    low, high = found["descriptor_bytes"]
    assert low <= size <= high
    held = [each["bytes"] for each in found["descriptors_hold"]]
    assert size in held or not held
    assert not held or {row["block_tokens"] for each in found["descriptors_hold"] for row in each["tokens"]} >= {tokens}
