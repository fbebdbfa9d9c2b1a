"""What engines print in the wild, with whatever container, collector or person stood between: figures by hand.

2.25 MiB are 2,359,296 B: 16 tokens of K and V of 36 layers, 8 heads, 128 wide, of 2 B. Printed to 3 places and four
times, they stand for 4 x 2,358,771.7 to 4 x 2,359,820.3 B.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from fleet.errors import DescriptionError
from scenarios.observations import Observation, Reading, read_observations
from scenarios.observations.lines import MOST_TIMES

MIB = 1 << 20
BLOCK = 2_359_296
LINE = (
    "KV Transfer metrics: Num successful transfers=4, Avg xfer time (ms)=1.381, P90 xfer time (ms)=2.601, "
    "Avg post time (ms)=0.672, P90 post time (ms)=0.801, Avg MB per transfer=2.25, Throughput (MB/s)=1629.549, "
    "Avg number of descriptors=72.0"
)
BYTES = (9_435_087, 9_439_281)
DICT = (
    "{'Num successful transfers': 4, 'Avg xfer time (ms)': 1.381, 'Avg MB per transfer': 2.25, "
    "'Throughput (MB/s)': 1629.549, 'Avg number of descriptors': 72.0}"
)
NUMPY = DICT.replace("2.25", "np.float64(2.25)").replace("72.0", "np.float64(72.0)")
OFFLOAD = (
    "KV Transfer metrics: GPU_to_CPU_total_bytes=201850880, GPU_to_CPU_total_time=0.08, CPU_to_GPU_total_bytes=57671680"
)
MOONCAKE = (
    "KV Transfer metrics: Num successful transfers=4, Avg xfer time (ms)=0.77, P90 xfer time (ms)=0.796, "
    "Avg MB per transfer=122.5, Throughput (MB/s)=159015.0, Avg number of descriptors=112.0, "
    "Num failed transfers=0, Num failed recvs=2, Num KV expired reqs=0"
)


def told(tmp_path: Path, text: str | bytes, name: str = "x.log") -> Reading:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_observations(str(path))


def fault(tmp_path: Path, text: str | bytes, name: str = "x.log") -> str:
    with pytest.raises(DescriptionError) as caught:
        told(tmp_path, text, name)
    return str(caught.value)


def whole(seen: Observation, name: str) -> tuple[int, int] | None:
    value = getattr(seen, name)
    return None if value is None else value.whole()


WRAPPED = {
    "vllm": f"(APIServer pid=205253) INFO 09-22 13:28:53 [metrics.py:98] {LINE}\n",
    "docker": json.dumps({"log": f"INFO 09-22 13:28:53 {LINE}\n", "stream": "stdout", "time": "2025-09-22T13:28:53Z"}),
    "cri": f"2025-09-22T13:28:53.123456789+00:00 stdout F INFO {LINE}\n",
    "cri, in parts": f"2025-09-22T13:28:53Z stdout P INFO {LINE[:80]}\n2025-09-22T13:28:53Z stdout F {LINE[80:]}\n",
    "journald": f"Sep 22 13:28:53 node vllm[123]: INFO {LINE}\n",
    "journald json": json.dumps({"__CURSOR": "s=1", "MESSAGE": f"INFO {LINE}", "_PID": "12"}),
    "kubectl": f"[pod/decode-0/vllm] INFO 09-22 13:28:53 {LINE}\n",
    "ray": f"\x1b[36m(EngineCoreActor pid=123, ip=10.0.0.1)\x1b[0m INFO {LINE}\n",
    "windows": f"\ufeffINFO {LINE}\r\nINFO other\r\n",
    "html": f"<pre>INFO {LINE}</pre>\n",
    "quoted mail": f"> INFO {LINE}\n",
    "table": f"| INFO {LINE} |\n",
    "several connectors": f"INFO KV Transfer metrics: NixlConnector={DICT}, OffloadingConnector={{'GPU_bytes': 5}}\n",
    "several, numpy 2": f"INFO KV Transfer metrics: OffloadingConnector={{'a': 5}}, NixlConnector={NUMPY}\n",
    "as one dict": f"INFO KV Transfer metrics: {DICT}\n",
    "json of a dict": json.dumps({"msg": f"KV Transfer metrics: NixlConnector={NUMPY}"}) + "\n",
    "with offloading": f"INFO 05-27 18:56:19 {OFFLOAD}\nINFO 05-27 18:56:29 {LINE}\n",
}


@pytest.mark.parametrize("name", WRAPPED)
def test_a_line_of_vllm_is_the_same_whatever_stands_around_it(name: str, tmp_path: Path) -> None:
    (seen,) = told(tmp_path, WRAPPED[name]).observations
    assert (whole(seen, "transfers"), whole(seen, "bytes"), whole(seen, "descriptors")) == ((4, 4), BYTES, (288, 288))
    assert seen.seconds is not None
    assert float(seen.seconds.low) == pytest.approx(4 * 1.3805e-3)


def test_two_pods_are_two_and_one_line_pasted_twice_is_one(tmp_path: Path) -> None:
    two = f"[pod/a] INFO 09-22 13:28:53 {LINE}\n[pod/b] INFO 09-22 13:28:53 {LINE}\n"
    (seen,) = told(tmp_path, two).observations
    assert whole(seen, "transfers") == (8, 8)
    (seen,) = told(tmp_path, two + two).observations
    assert whole(seen, "transfers") == (8, 8)


def test_lines_of_other_connectors_carry_no_handoff_and_are_told(tmp_path: Path) -> None:
    reading = told(tmp_path, f"INFO {OFFLOAD}\nINFO KV Transfer metrics: load_count=10, load_avg_ms=550.0\n")
    assert reading.observations == ()
    assert len(reading.warnings) == 2
    assert "line 1: KV Transfer metrics of another connector (GPU_to_CPU_total_bytes, " in reading.warnings[0]


def test_mooncake_under_vllm_writes_from_prefill_in_runs_of_blocks(tmp_path: Path) -> None:
    reading = told(tmp_path, f"INFO 05-27 18:56:19 {MOONCAKE}\n")
    (seen,) = reading.observations
    assert (reading.engine, seen.engine, seen.side, seen.requests_unknown) == ("mooncake", "mooncake", "prefill", True)
    assert whole(seen, "bytes") == (513_800_143, 513_804_337), "4 x (122.4995 to 122.5005) x 2^20"
    assert seen.descriptors is None
    assert seen.failed == 2, "receives that failed are transfers that failed"
    assert "merges neighbouring blocks" in " ".join(reading.blind)
    mixed = fault(tmp_path, f"INFO 05-27 18:56:19 {MOONCAKE}\nINFO 05-27 18:56:29 {LINE}\n")
    assert "lines of NIXL's connector (2) and of Mooncake's (1): keep those of one" in mixed


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (LINE.replace("2.25", "nan"), "Avg MB per transfer is 'nan': no plain decimal number; take the line out"),
        (LINE.replace("2.25", "1,129.25"), "the line is cut: no Avg MB per transfer"),
        (LINE[:70], "the line is cut: no Avg MB per transfer"),
        (LINE + " INFO " + LINE.partition(": ")[2], "of two lines or of several connectors run together"),
        (f"KV Transfer metrics: A={DICT}, B={DICT}", "of two lines or of several connectors run together"),
        ("KV Transfer metrics:", "the line is cut"),
    ],
)
def test_what_is_no_whole_line_is_never_read_in_part(line: str, words: str, tmp_path: Path) -> None:
    told_ = fault(tmp_path, f"INFO start\nINFO 09-22 13:28:53 {line}\n")
    assert "x.log:2:1" in told_
    assert words in told_


E0 = '{e="0"}'
SUM, COUNT = "vllm:nixl_bytes_transferred_sum", "vllm:nixl_bytes_transferred_count"
METRICS = {
    "labels in another order": f'{COUNT}{{m="m",e="0"}} 4.0\n{SUM}{{e="0",m="m"}} 9.437184e+06\n',
    "openmetrics": f"{COUNT}{E0} 4.0\n{SUM}{E0} 9437184.0\n{SUM[:-3]}created{E0} 1.7e9\n# EOF\n",
    "exemplars": f'{COUNT} 4.0 # {{trace_id="a b"}} 2.3e6 1.6e9\n{SUM} 9437184.0 # {{trace_id="x"}} 1.0\n',
    "timestamps": f'{COUNT}{{a="b"}} 4 1700000000123\n{SUM}{{a="b"}} 9437184 1700000000123\n',
    "blanks and a comma": f'  {COUNT} {{ engine = "0" , m="x" , }} 4\n{SUM}{{engine="0", m="x"}}\t9437184\n',
    "escaped labels": f'{COUNT}{{model_name="a\\"b\\\\c\\nd}}"}} 4\n{SUM}{{model_name="a\\"b\\\\c\\nd}}"}} 9437184\n',
    "http headers": f"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n{COUNT} 4\r\n{SUM} 9437184\r\n",
    "names without colon": f"{COUNT} 4\n{SUM} 9437184\n".replace("vllm:", "vllm_"),
    "kubectl": f"[pod/d-0/vllm] {COUNT} 4\n[pod/d-0/vllm] {SUM} 9437184\n",
    "grep -H": f"after.txt:{COUNT} 4\nafter.txt:{SUM} 9437184\n",
    "grep -n": f"12:{COUNT} 4\n13:{SUM} 9437184\n",
    "grep -Hn": f"after.txt:12:{COUNT} 4\nafter.txt:13:{SUM} 9437184\n",
    "a time that is none": f"{COUNT} 4\n{SUM} 9437184\nvllm:nixl_xfer_time_seconds_sum NaN\n",
    "names in a log": f"INFO query: {SUM} of the last 5m\n{COUNT} 4\n{SUM} 9437184\n",
}


@pytest.mark.parametrize("name", METRICS)
def test_metrics_of_vllm_are_exact_however_they_were_fetched(name: str, tmp_path: Path) -> None:
    (seen,) = told(tmp_path, METRICS[name]).observations
    assert (whole(seen, "transfers"), whole(seen, "bytes")) == ((4, 4), (9_437_184, 9_437_184))
    if name == "escaped labels":
        assert seen.model == 'a"b\\c\\nd}', "the line end is shown escaped"


def test_samples_behind_different_prefixes_are_not_scrapes_of_one(tmp_path: Path) -> None:
    pods = "".join(f"[pod/d-{n}] {COUNT} {n + 1}\n[pod/d-{n}] {SUM} {BLOCK * (n + 1)}\n" for n in (1, 0))
    reading = told(tmp_path, pods)
    assert [whole(seen, "bytes") for seen in reading.observations] == [(2 * BLOCK, 2 * BLOCK), (BLOCK, BLOCK)]
    assert not reading.unknown


def test_a_gauge_beside_a_histogram_of_sglang_counts_nothing_twice(tmp_path: Path) -> None:
    name = "sglang:kv_transfer_total_mb"
    reading = told(
        tmp_path, f'{name}{{tp_rank="0"}} 141.75\n{name}_count{{tp_rank="0"}} 2\n{name}_sum{{tp_rank="0"}} 283.5\n'
    )
    (seen,) = reading.observations
    assert whole(seen, "bytes") == (297_271_296, 297_271_296)
    assert "left out" in reading.warnings[0]


def event(name: str, value: str) -> str:
    head = "2026-01-05 12:00:01 - INFO - "
    return f"{head}\n=== NIXL Telemetry Event ===\n{head}Event: {name}\n{head}Value: {value}\n{head}====\n"


def test_events_of_nixl_behind_a_logger_s_prefix_are_read(tmp_path: Path) -> None:
    text = event("agent_rx_bytes", str(BLOCK)) + event("agent_rx_requests_num", "1") + event("agent_xfer_time", "1500")
    (seen,) = told(tmp_path, text + event("agent_rx_bytes", "100 (100.00 B)")).observations
    assert (whole(seen, "bytes"), whole(seen, "transfers")) == ((BLOCK + 100, BLOCK + 100), (1, 1))
    assert seen.seconds is not None
    assert float(seen.seconds.low) == 0.0015


def test_events_that_nixl_dropped_leave_its_sums_unknown(tmp_path: Path) -> None:
    reading = told(tmp_path, event("agent_rx_bytes", "5") + event("agent_telemetry_events_dropped", "7"))
    assert reading.observations[0].bytes is None
    assert "NIXL dropped 7 events (line 8)" in reading.unknown[0]


@pytest.mark.parametrize("tail", ["", "59296", "59296B in 12"])
def test_a_trace_of_nixl_that_is_cut_is_told(tail: str, tmp_path: Path) -> None:
    line = "[NIXL TELEMETRY]: From backend UCX Completed Xfer with 72 descriptors of total size 23"
    assert "x.log:2:1 the line is cut" in fault(tmp_path, f"{line}59296B in 12us.\n{line}{tail}\n")


def test_labels_of_category_do_not_part_times_from_bytes(tmp_path: Path) -> None:
    one, two = ('{{agent_name="d",category="{}"}}'.format(f"NIXL_TELEMETRY_{c}") for c in ("TRANSFER", "PERFORMANCE"))
    text = f"agent_rx_bytes{one} {4 * BLOCK}\nagent_rx_requests_num{one} 4\nagent_xfer_time{two} 5524\n"
    for prefix in ("", "[pod/d] "):
        (seen,) = told(tmp_path, "".join(prefix + line + "\n" for line in text.splitlines())).observations
        assert (whole(seen, "bytes"), whole(seen, "transfers")) == ((4 * BLOCK, 4 * BLOCK), (4, 4))
        assert seen.seconds is not None
        assert float(seen.seconds.low) == 0.005524
    histogram = (
        "agent_rx_bytes_total 5\nagent_rx_requests_num_total 1\nagent_rx_last_bytes 5\nagent_xfer_time_us_sum 12\n"
    )
    (seen,) = told(tmp_path, histogram).observations
    assert seen.seconds is not None
    assert float(seen.seconds.low) == 12e-6


STATS = "I20250105 12:00:0{}.1 77 transfer_engine_impl.cpp:500] [Metrics] Transfer Engine Stats (over last {}s): "


def test_lines_of_mooncake_pasted_twice_count_once_and_an_interval_of_nothing_is_told(tmp_path: Path) -> None:
    first, second = (
        STATS.format(n, 5) + "Throughput: 2.00 MB/s | Latency Distribution (count=3): 0-10us:100%" for n in "12"
    )
    (seen,) = told(tmp_path, f"{first}\n{second}\n{first}\n").observations
    assert whole(seen, "bytes") == (20_919_092, 21_023_948), "2 x 5 s x (1.995 to 2.005) x 2^20"
    assert "an interval of 0 s" in fault(tmp_path, STATS.format(1, 0) + "Throughput: 2.00 MB/s\n")
    assert "neither Throughput in MB/s nor" in fault(tmp_path, STATS.format(1, 5) + "Throughput: 2.00 GB/s\n")


HEAD = "RequestID,Delay(ms),Duration(ms),Bandwidth(Gbps)\n"
CSV = HEAD + "1,0.5,3.25,80.5\n2,0.5,3.5,90\n"
TABLES = {
    "as written": CSV,
    "windows, byte order mark": "\ufeff" + CSV.replace("\n", "\r\n"),
    "semicolons": CSV.replace(",", ";"),
    "semicolons, decimal commas": CSV.replace(",", ";").replace(".", ","),
    "tabs": CSV.replace(",", "\t"),
    "quotes": "".join(",".join(f'"{cell}"' for cell in row.split(",")) + "\n" for row in CSV.splitlines()),
    "blanks": CSV.replace(",", ", "),
    "headers of two processes": CSV + HEAD,
}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("file", ["rank_3_recv.csv", "3c9f0e2a-1111-2222-3333-444455556666_3_recv.csv"])
def test_tables_of_tensorrt_llm_survive_a_spreadsheet(name: str, file: str, tmp_path: Path) -> None:
    (seen,) = told(tmp_path, TABLES[name], file).observations
    assert (seen.rank, seen.side, whole(seen, "transfers"), seen.bytes) == ("3", "decode", (2, 2), None)
    assert seen.seconds is not None
    assert seen.rates is not None
    assert float(seen.seconds.low) == pytest.approx(0.00675, rel=1e-5)
    assert float(seen.rates.high) == pytest.approx(90e9 / 8, rel=1e-5)
    (again,) = read_observations(str(tmp_path)).observations
    assert whole(again, "transfers") == (2, 2)


@pytest.mark.parametrize("row", ["1,0.5,3.25", "1,0.5,nan,80", '1,0.5,"3.25,80', "1,0.5,3;25,80"])
def test_a_row_of_tensorrt_llm_that_is_cut_is_told(row: str, tmp_path: Path) -> None:
    assert "rank_0_send.csv:2:1" in fault(tmp_path, HEAD + row + "\n", "rank_0_send.csv")


SENT = "2026-03-13 14:22:16.{},KVSendTask,{},0,2359296,32768,72,0.523,1.234,5.678,8.901,207.45\n"
PERF = (
    "[TRT-LLM] [I] KVSendTask.print_perf_info: unique_rid=42, peer_rank=0, transfer_size=2359296 byte, "
    "avg_segment_size=32768.0 byte, entry_count=72, prepare_args_latency=0.523 ms, queue_latency=1.234 ms, "
    "transfer_latency=5.678 ms, task_latency=8.901 ms, throughput=207.450 MB/s\n"
)


@pytest.mark.parametrize("text", [SENT.format(1, 42) + SENT.format(2, 43), PERF + PERF.replace("rid=42", "rid=43")])
def test_sends_of_tensorrt_llm_tell_their_bytes(text: str, tmp_path: Path) -> None:
    others = "timestamp,task_type,unique_rid,peer_rank,transfer_size_bytes\n1,AuxSendTask,42,0,88,88,1,0,0,0,0,0\n"
    reading = told(tmp_path, others + text + "1,KVRecvTask,42,0,,,,,,,9.1,\n")
    (seen,) = reading.observations
    assert (reading.engine, seen.side, seen.requests_unknown) == ("trtllm", "prefill", True)
    assert (whole(seen, "bytes"), seen.descriptors) == ((2 * BLOCK, 2 * BLOCK), None)
    assert seen.seconds is not None
    assert float(seen.seconds.high) == pytest.approx(2 * 5.6785e-3)
    assert "x.log:2:1 the line is cut" in fault(tmp_path, "a\n" + text.splitlines()[0][:60] + "\n")


def test_a_packed_log_is_read_as_the_log(tmp_path: Path) -> None:
    packed = gzip.compress(f"INFO 09-22 13:28:53 {LINE}\n".encode())
    (seen,) = told(tmp_path, packed, "decode.log.gz").observations
    assert whole(seen, "bytes") == BYTES
    later = gzip.compress(f"INFO 09-22 13:29:03 {LINE}\n".encode())
    (seen,) = told(tmp_path, packed + later + bytes(512)).observations
    assert whole(seen, "transfers") == (8, 8)


def test_packed_files_that_are_cut_damaged_nested_or_bombs_are_told(tmp_path: Path) -> None:
    packed = gzip.compress(f"INFO 09-22 13:28:53 {LINE}\n".encode() * 50)
    for size in (2, 10, len(packed) // 2, len(packed) - 1):
        assert "is cut: its gzip does not end" in fault(tmp_path, packed[:size])
    assert "is damaged gzip" in fault(tmp_path, packed + b"junk")
    assert "is packed twice" in fault(tmp_path, gzip.compress(packed))
    assert "no line of a format that is known" in fault(tmp_path, gzip.compress(b""))
    bomb = gzip.compress(b"a line without a mark, over and over\n" * 600_000)
    assert f"unpacks to more than {MOST_TIMES} times its size" in fault(tmp_path, bomb)
