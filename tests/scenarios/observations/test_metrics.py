"""Prometheus text, NIXL's telemetry and Mooncake's lines: sums of ranks once, resets told, exact figures exact."""

from __future__ import annotations

from fractions import Fraction

import pytest

from fleet.errors import DescriptionError
from scenarios.observations import read_observations

MIB = 1 << 20
VLLM = """\
# HELP vllm:nixl_bytes_transferred Histogram of bytes.
# TYPE vllm:nixl_bytes_transferred histogram
vllm:nixl_bytes_transferred_bucket{engine="0",le="2048.0",model_name="m"} 0.0
vllm:nixl_bytes_transferred_bucket{engine="0",le="+Inf",model_name="m"} 4.0
vllm:nixl_bytes_transferred_count{engine="0",model_name="m"} 4.0
vllm:nixl_bytes_transferred_sum{engine="0",model_name="m"} 9.437184e+06
vllm:nixl_xfer_time_seconds_sum{engine="0",model_name="m"} 0.005524
vllm:nixl_num_descriptors_sum{engine="0",model_name="m"} 288.0
vllm:nixl_num_failed_transfers_total{engine="0",model_name="m"} 0.0
vllm:cache_config_info{block_size="16",num_gpu_blocks="11552"} 1.0
"""


def observed(tmp_path, text):
    (tmp_path / "input").write_text(text)
    return read_observations(str(tmp_path / "input"))


def only(tmp_path, text):
    (one,) = observed(tmp_path, text).observations
    return one


def fault(tmp_path, text):
    with pytest.raises(DescriptionError) as caught:
        observed(tmp_path, text)
    return str(caught.value)


def test_sums_of_a_histogram_are_exact(tmp_path):
    seen = only(tmp_path, VLLM)
    assert seen.bytes.whole() == (9_437_184, 9_437_184)
    assert (seen.transfers.whole(), seen.descriptors.whole(), seen.failed) == ((4, 4), (288, 288), 0)
    assert (seen.rank, seen.model, seen.lines) == ("engine 0", "m", (6, 5))
    assert observed(tmp_path, VLLM).sizing["pool_blocks"].whole() == (11_552, 11_552)


def test_two_scrapes_give_what_moved_between_them(tmp_path):
    later = VLLM.replace("9.437184e+06", "1.1796480e+07").replace(" 4.0", " 5.0").replace("288.0", "360.0")
    seen = only(tmp_path, VLLM + later)
    assert (seen.bytes.whole(), seen.transfers.whole(), seen.descriptors.whole()) == (
        (2_359_296, 2_359_296), (1, 1), (72, 72),
    )  # fmt: skip


def test_a_counter_that_fell_is_unknown_and_told_at_its_line(tmp_path):
    reading = observed(tmp_path, VLLM + VLLM.replace("9.437184e+06", "100.0"))
    assert reading.observations[0].bytes is None
    (why,) = reading.unknown
    assert why.startswith(
        "vllm:nixl_bytes_transferred_sum fell from 9,437,184 (line 6) to 100 (line 16) between scrapes"
    )
    assert "its process began anew" in why
    assert why.endswith("keep the scrapes from line 16 on, or those of one process")
    assert reading.warnings == reading.unknown


def test_a_series_that_misses_in_a_scrape_is_unknown(tmp_path):
    later = "\n".join(line for line in VLLM.splitlines() if "descriptors" not in line)
    assert only(tmp_path, VLLM + later + "\n").descriptors is None
    (why,) = observed(tmp_path, VLLM + later + "\n").unknown
    assert "vllm:nixl_num_descriptors_sum stands in 1 of 2 scrapes (first in line " in why


@pytest.mark.parametrize("value", ["-1", "1e999999999", "0x10", "9" * 50])
def test_a_value_that_is_no_count_is_told(tmp_path, value):
    assert "vllm:nixl_bytes_transferred_sum" in fault(tmp_path, VLLM.replace("9.437184e+06", value))


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "nan"])
def test_a_value_that_is_not_finite_is_unknown_and_no_fault_of_the_file(tmp_path, value):
    reading = observed(tmp_path, VLLM.replace("9.437184e+06", value))
    assert reading.observations[0].bytes is None
    assert reading.observations[0].descriptors.whole() == (288, 288)
    (why,) = reading.unknown
    assert why.startswith("vllm:nixl_bytes_transferred_sum is no finite number (line 6)")


def test_sglang_histograms_are_mebibytes_a_rank_and_gauges_the_last_transfer(tmp_path):
    base = 'sglang:kv_transfer_total_mb_{}{{model_name="m",tp_rank="{}"}} {}\n'
    text = "".join(base.format("count", r, "2.0") + base.format("sum", r, "281.25") for r in "01")
    reading = observed(tmp_path, text)
    assert [one.rank for one in reading.observations] == ["tp_rank 0", "tp_rank 1"]
    assert reading.observations[0].bytes.whole() == (281 * MIB + MIB // 4,) * 2
    gauge = 'sglang:kv_transfer_total_mb{tp_rank="0"} 140.625\nsglang:kv_transfer_latency_ms{tp_rank="0"} 12.5\n'
    reading = observed(tmp_path, gauge)
    assert reading.observations[0].transfers.whole() == (1, 1)
    assert reading.observations[0].bytes.whole() == (147_456_000, 147_456_000)
    assert "gauge" in reading.warnings[0]


def test_nixl_keeps_reads_from_writes(tmp_path):
    text = (
        'agent_rx_bytes_total{agent_name="a"} 2359296\nagent_tx_bytes_total{agent_name="a"} 0\n'
        'agent_rx_requests_num_total{agent_name="a"} 1\nagent_xfer_time_total{agent_name="a"} 1381\n'
    )
    seen = only(tmp_path, text)
    assert (seen.direction, seen.bytes.whole(), seen.transfers.whole()) == ("read", (2_359_296,) * 2, (1, 1))
    assert float(seen.seconds.low) == 0.001381


def test_another_product_s_agent_is_no_nixl(tmp_path):
    assert "another product" in fault(tmp_path, 'agent_tx_bytes_total{org="o"} 5\n')


def test_a_traced_transfer_counts_when_it_is_completed(tmp_path):
    line = "T [NIXL TELEMETRY]: From backend UCX {} Xfer with 72 descriptors of total size 2359296B in 1381us.\n"
    seen = only(tmp_path, line.format("Posted") + line.format("Completed") + line.format("Posted and Completed"))
    assert (seen.transfers.whole(), seen.bytes.whole(), seen.descriptors.whole()) == (
        (2,) * 2,
        (4_718_592,) * 2,
        (144,) * 2,
    )
    reading = observed(tmp_path, line.format("Posted") * 2 + line.format("Completed"))
    assert reading.observations[0].transfers.whole() == (1, 1)
    assert "1 transfers are posted and never completed" in reading.warnings[0]


def test_events_of_nixl_are_summed_and_one_without_a_value_is_told(tmp_path):
    event = "Event Name: agent_rx_bytes\nValue: {}\n"
    assert only(tmp_path, event.format(5) + event.format(7)).bytes.whole() == (12, 12)
    assert "without its value" in fault(tmp_path, event.format(5) + "Event Name: agent_rx_bytes\n")


def test_mooncake_lines_are_bytes_of_an_interval_with_the_rounding_carried(tmp_path):
    line = (
        "I1 [Metrics] Transfer Engine Stats (over last 5s): Throughput: 2.25 MB/s | Latency Distribution (count=9): x\n"
    )
    seen = only(tmp_path, line * 2)
    assert 2 * 5 * 2_359_296 in seen.bytes
    assert seen.bytes.high - seen.bytes.low == Fraction(2 * 5 * MIB, 100)
    assert seen.requests_unknown
    assert "cut" in fault(tmp_path, "Transfer Engine Stats (over last 5s")


def test_several_sources_in_one_file_are_named_with_their_lines(tmp_path):
    told = fault(
        tmp_path,
        VLLM + "[NIXL TELEMETRY]: From backend UCX Completed Xfer with 1 descriptors of total size 2B in 3us\n",
    )
    assert "vLLM metrics: 3, 4" in told
    assert "NIXL telemetry: 11" in told


@pytest.mark.parametrize(
    "cut", ['{engine="1"', '{engine="1",model_name="m"}', '{engine="1"} 9 9 9', "{engine=1} 9", ""]
)
def test_a_cut_sample_is_told_and_not_left_out(tmp_path, cut):
    assert ":11:1" in fault(tmp_path, f"{VLLM}vllm:nixl_bytes_transferred_sum{cut}\n")


def test_timestamps_and_exemplars_stand_behind_values(tmp_path):
    later = VLLM.replace("9.437184e+06", '9.437184e+06 1700000000000 # {trace_id="a"} 0.67')
    assert only(tmp_path, later).bytes.whole() == (9_437_184, 9_437_184)
