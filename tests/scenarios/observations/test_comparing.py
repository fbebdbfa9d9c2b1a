"""A plan beside what an engine printed: inside the printed figure is a match, and every other answer says why."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from scenarios.cli.__main__ import main
from tests.command_line import asker

MIB = 1 << 20
BLOCK = 2_359_296
"""16 tokens of K and V of 36 layers, 8 heads, 128 wide, bf16."""
HANDED = 63 * BLOCK

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 512, "intermediate_size": 512,
    "num_hidden_layers": 36, "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 1000,
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
}  # fmt: skip


@pytest.fixture
def ask(capfd):
    return asker(capfd)


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    """Admitted plans of 1,000 tokens: name -> path."""
    folder = tmp_path_factory.mktemp("plans")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    found = {}
    asked = {
        "vllm-nixl": [], "sglang": [], "trtllm": [], "mooncake": ["--block-size", "16"], "none": None,
        "two": ["--prefill", "gpu:0-1", "--decode", "gpu:2-3"],
    }  # fmt: skip
    for name, extra in asked.items():
        engine = "vllm-nixl" if name == "two" else name
        flags = [] if extra is None else ["--engine", engine, *extra]
        ends = [] if name == "two" else ["--prefill", "gpu:0", "--decode", "gpu:1"]
        fleet = ["--fleet", "hgx-h100", "--model", folder, "--isl", 1000, "--osl", 2]
        found[name] = folder / f"{name}.json"
        arguments = ["admit", *fleet, *ends, *flags, "--plan-out", found[name]]
        assert main([str(argument) for argument in arguments]) == 0
    return found


def line(count=4, size="141.75", descriptors="4536.0", time="81.381", more=""):
    return (
        f"INFO 10:00:00 KV Transfer metrics: Num successful transfers={count}, Avg xfer time (ms)={time}, "
        f"Avg MB per transfer={size}, Throughput (MB/s)=1629.5, Avg number of descriptors={descriptors}{more}\n"
    )


@pytest.fixture
def compared(ask, tmp_path):
    """The comparison of a plan with a text, and the exit code."""

    def compare(plan, text, *more):
        (tmp_path / "observed").write_text(text)
        done = ask("compare", plan, tmp_path / "observed", "-o", "json", *more)
        return done.document, done.code

    return compare


def check(document, name):
    return next(one for one in document["checks"] if one["name"] == name)


def test_a_prediction_inside_the_printed_figure_matches(plans, compared):
    document, code = compared(plans["vllm-nixl"], line())
    (row,) = document["rows"]
    assert (document["verdict"], code, row["verdict"], row["witness"]) == ("equal", 0, "match", "import")
    assert row["predicted_bytes"] == 4 * HANDED
    assert row["observed_bytes"] is None
    assert row["observed_bytes_interval"] == [594_540_495, 594_544_689]
    assert (row["predicted_copies"], row["observed_copies"]) == (18_144, 18_144)


@pytest.mark.parametrize(
    ("size", "words"),
    [
        ("141.751", "no whole number of blocks of 2,359,296 B"),
        ("139.5", "they are 248 blocks of 2,359,296 B, the plan has 252"),
    ],
)
def test_a_mismatch_says_by_how_much_and_whether_blocks_divide(plans, compared, size, words):
    document, code = compared(plans["vllm-nixl"], line(size=size))
    assert (document["verdict"], code, document["rows"][0]["verdict"]) == ("different", 1, "mismatch")
    told = check(document, "handoff_bytes_match")["detail"]
    assert words in told
    assert "than predicted" in told


def test_the_smallest_wrong_figure_that_prints_otherwise_is_caught(plans, compared):
    assert compared(plans["vllm-nixl"], line(size="141.749"))[1] == 1
    assert compared(plans["vllm-nixl"], line(descriptors="4535.9"))[1] == 1
    half, _ = compared(plans["vllm-nixl"], line(descriptors="2268.0"))
    assert "K and V of a layer in one region" in check(half, "descriptors_match")["detail"]


def test_ranks_are_summed_once(plans, compared):
    document, code = compared(plans["two"], line(size="70.875"))
    assert (document["verdict"], code) == ("equal", 0)
    assert document["observation"]["requests"] == 2
    assert document["rows"][0]["predicted_bytes"] == 2 * HANDED
    cut, _ = compared(plans["two"], line(count=3, size="70.875"))
    assert check(cut, "transfers_match")["result"] == "inconclusive"


def test_requests_that_were_told_must_have_their_transfers(plans, compared):
    document, code = compared(plans["two"], line(size="70.875"), "--requests", "3")
    assert code == 1
    assert "3 requests are 6 transfers, 4 were counted" in check(document, "transfers_match")["detail"]


def test_payload_is_never_set_beside_moved_bytes(plans, compared):
    for plan in ("none", "sglang"):
        document, code = compared(plans[plan], line())
        assert (document["verdict"], code, document["rows"][0]["verdict"]) == ("inconclusive", 3, "unwitnessed")
        assert "admit again with --engine vllm-nixl" in check(document, "handoff_bytes_match")["detail"]


def test_a_zero_is_missing_where_the_source_would_see_it_and_proves_nothing_elsewhere(plans, compared):
    seen = 'vllm:nixl_bytes_transferred_count{engine="0"} 0.0\nvllm:nixl_bytes_transferred_sum{engine="0"} 0.0\n'
    document, code = compared(plans["vllm-nixl"], seen)
    assert (document["rows"][0]["verdict"], code) == ("missing", 1)
    blind = 'agent_rx_bytes_total{agent_name="a"} 0\nagent_rx_requests_num_total{agent_name="a"} 0\n'
    document, code = compared(plans["vllm-nixl"], blind)
    assert (document["rows"][0]["verdict"], code) == ("unwitnessed", 3)


def test_nixl_reads_are_a_pull_and_writes_are_not(plans, compared):
    text = 'agent_{w}_bytes_total{{a="1"}} {n}\nagent_{w}_requests_num_total{{a="1"}} 1\n'
    assert compared(plans["vllm-nixl"], text.format(w="rx", n=HANDED))[1] == 0
    document, code = compared(plans["vllm-nixl"], text.format(w="tx", n=HANDED))
    assert code == 3
    assert "in the plan's direction" in check(document, "handoff_bytes_match")["detail"]


def test_sglang_moves_whole_tokens_and_its_megabytes_are_binary(plans, compared):
    text = "sglang:kv_transfer_total_mb_count 2.0\nsglang:kv_transfer_total_mb_sum {}\n"
    assert compared(plans["sglang"], text.format("281.25"))[1] == 0
    assert compared(plans["sglang"], text.format("294.912"))[1] == 1


def test_mooncake_counts_no_requests(plans, compared):
    text = "Transfer Engine Stats (over last 1s): Throughput: {} MB/s | Latency Distribution (count=9): x\n"
    document, code = compared(plans["mooncake"], text.format("283.50"))
    assert (code, document["observation"]["requests"]) == (0, 2)
    assert compared(plans["mooncake"], text.format("283.60"))[1] == 1
    assert compared(plans["mooncake"], text.format("283.50"), "--requests", "3")[1] == 1
    many = "".join(text.format("141.75").replace("last 1s", "last 5000s") for _ in range(1))
    assert compared(plans["mooncake"], many)[1] == 3


def test_rates_of_tensorrt_llm_leave_bytes_unwitnessed_and_name_a_link(plans, ask, tmp_path):
    (tmp_path / "rank_1_recv.csv").write_text("RequestID,Delay(ms),Duration(ms),Bandwidth(Gbps)\n7,0.5,10,400\n")
    done = ask("compare", plans["trtllm"], tmp_path, "-o", "json")
    document = done.document
    assert (document["rows"][0]["verdict"], done.code) == ("unwitnessed", 3)
    assert document["rows"][0]["observed_bytes"] is None
    assert "pcie (63 GB/s)" in document["times"]["words"]


def test_a_rate_far_below_its_edge_says_what_it_looks_like(plans, compared):
    document, _ = compared(plans["vllm-nixl"], line())
    assert document["times"]["link"] == "nvlink"
    assert "no link of the shipped fleets is so slow" in document["times"]["words"]
    near, _ = compared(plans["vllm-nixl"], line(time="0.400"))
    assert near["times"]["words"] is None
    above, _ = compared(plans["vllm-nixl"], line(time="0.100"))
    assert "faster than the declared" in above["times"]["words"]


def test_failed_transfers_fail(plans, compared):
    assert compared(plans["vllm-nixl"], line(more=", Num failed transfers=1"))[1] == 1
    assert compared(plans["vllm-nixl"], line(more=", Num failed transfers=0"))[1] == 0


def test_printed_memory_is_set_beside_the_plan_s_blocks(plans, compared):
    blocks = (1 << 30) // BLOCK
    text = line() + f"Available KV cache memory: 1.00 GiB\nGPU KV cache size: {blocks * 16:,} tokens\n"
    assert check(compared(plans["vllm-nixl"], text)[0], "pool_tokens_match")["result"] == "passed"
    text += "Maximum concurrency for 1,000 tokens per request: 7.22x\n"
    assert check(compared(plans["vllm-nixl"], text)[0], "pool_concurrency_consistent")["result"] == "passed"
    other = text.replace(f"{blocks * 16:,} tokens", f"{blocks * 32:,} tokens")
    document, code = compared(plans["vllm-nixl"], other)
    assert code == 1
    assert check(document, "pool_tokens_match")["result"] == "failed"
    assert check(document, "pool_concurrency_consistent")["result"] == "failed"


@pytest.mark.parametrize("length", [1000, 1099])
def test_memory_printed_by_any_version_of_vllm_agrees_with_itself(plans, compared, length):
    """Blocks by blocks, tokens by tokens (older), and tokens that are concurrency * length (the newest)."""
    blocks = (1 << 30) // BLOCK
    turns = blocks / -(-length // 16)
    for tokens, printed in ((blocks * 16, turns), (blocks * 16, blocks * 16 / length), (int(turns * length), turns)):
        text = line() + f"Available KV cache memory: 1.00 GiB\nGPU KV cache size: {tokens:,} tokens, "
        text += f"Maximum concurrency for {length:,} tokens per request: {printed:.2f}x\n"
        document = compared(plans["vllm-nixl"], text)[0]
        assert check(document, "pool_tokens_match")["result"] == "passed"
        assert check(document, "pool_concurrency_consistent")["result"] == "passed"


def test_the_text_carries_warnings_and_intervals(plans, ask, tmp_path):
    (tmp_path / "log").write_text(line() * 2)
    done = ask("compare", plans["vllm-nixl"], tmp_path / "log", "--engine-version", "0.11.0")
    assert done.code == 0
    assert "counted once" in done.out
    assert "594,540,495 to 594,544,689 B" in done.out
    page = ask("compare", plans["vllm-nixl"], tmp_path / "log", "-o", "md")
    assert (page.code, "594,540,495 to 594,544,689 B" in page.out) == (0, True)


def test_bad_use_is_told(plans, ask, tmp_path):
    (tmp_path / "noise").write_text("hello\n")
    done = ask("compare", plans["none"], tmp_path / "noise")
    assert (done.code, "no line of a format" in done.err) == (2, True)
    done = ask("compare", plans["none"], plans["none"], "--requests", "2")
    assert (done.code, "of an observation" in done.err) == (2, True)
    (tmp_path / "log").write_text(line())
    done = ask("compare", tmp_path / "log", plans["none"])
    assert (done.code, "a plan stands first" in done.err) == (2, True)
    done = ask("compare", tmp_path / "noise", tmp_path / "noise")
    assert done.code == 2


def test_a_log_out_of_a_named_pipe_is_told_where_to_go(plans, ask, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with ThreadPoolExecutor() as other:
        written = other.submit((tmp_path / "pipe").write_text, line())
        answer = ask("compare", plans["vllm-nixl"], tmp_path / "pipe")
        assert written.result() > 0
    assert answer.code == 2
    assert "comes from stdin" in answer.err


SCRAPES = """vllm:nixl_bytes_transferred_sum{model_name="m"} 297271296
vllm:nixl_bytes_transferred_count{model_name="m"} 2
"""


@pytest.mark.parametrize(
    ("then", "seen", "mend"),
    [
        (("148635648", "1"), "sum fell from 297,271,296 (line 1) to 148,635,648 (line 3)", "from line 3 on"),
        (("445906944", "1"), "count fell from 2 (line 2) to 1 (line 4)", "from line 4 on"),
        (("297271295.5", "2"), "sum fell from 297,271,296 (line 1) to 297,271,295.5 (line 3)", "from line 3 on"),
    ],
)
def test_a_reset_is_told_by_what_was_seen_what_it_means_and_how_to_mend_it(then, seen, mend, plans, tmp_path, ask):
    later = SCRAPES.replace("297271296", then[0]).replace("} 2\n", f"}} {then[1]}\n")
    path = tmp_path / "decode.prom"
    path.write_text(SCRAPES + later)
    answer = ask("compare", plans["vllm-nixl"], path, "-o", "json")
    assert answer.code == 3
    (check,) = [check for check in answer.document["checks"] if check["name"] == "handoff_bytes_match"]
    assert check["result"] == "inconclusive"
    for words in (seen, "began anew", "is unknown", mend):
        assert words in check["detail"]
    # As told: what is kept from that line on is one scrape of the new process.
    path.write_text(SCRAPES)
    assert ask("compare", plans["vllm-nixl"], path).code == 0


def test_requests_that_are_said_stand_in_for_a_count_that_was_reset(plans, tmp_path, ask):
    path = tmp_path / "decode.prom"
    path.write_text(SCRAPES + SCRAPES.replace("297271296", "445906944").replace("} 2\n", "} 1\n"))
    assert ask("compare", plans["vllm-nixl"], path, "--requests", "1").code == 0
    assert ask("compare", plans["vllm-nixl"], path, "--requests", "2").code == 1
