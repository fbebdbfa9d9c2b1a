"""Formats are known by their lines, wherever they stand; several sources in one file are refused by name."""

from __future__ import annotations

import pytest

from fleet.errors import DescriptionError
from scenarios.observations import read_observations

LINE = (
    "(EngineCore_DP0 pid=7) INFO 12-01 10:00:00 [loggers.py:9] KV Transfer metrics: Num successful transfers=4, "
    "Avg xfer time (ms)=1.381, P90 xfer time (ms)=2.601, Avg post time (ms)=0.672, P90 post time (ms)=0.801, "
    "Avg MB per transfer=2.25, Throughput (MB/s)=1629.549, Avg number of descriptors=72.0"
)


def observed(tmp_path, text, name="input"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_observations(str(path))


def fault(tmp_path, text):
    with pytest.raises(DescriptionError) as caught:
        observed(tmp_path, text)
    return str(caught.value)


def test_the_printed_average_is_carried_as_an_interval_of_mebibytes(tmp_path):
    """2.25 MiB each, of 4: the public line is one block of 2,359,296 B a transfer, 72 descriptors."""
    (seen,) = observed(tmp_path, f"noise\n{LINE}\nmore\n").observations
    assert 4 * 2_359_296 in seen.bytes
    assert seen.bytes.whole() == (9_435_087, 9_439_281)
    assert 288 in seen.descriptors
    assert (seen.rank, seen.side, seen.lines) == ("EngineCore_DP0", "decode", (2,))


def test_colours_and_carriage_returns_are_taken_out(tmp_path):
    plain = observed(tmp_path, LINE)
    coloured = "\x1b[1;36m(EngineCore_DP0 pid=7)\x1b[0m" + LINE.removeprefix("(EngineCore_DP0 pid=7)") + "\r\n"
    assert observed(tmp_path, coloured).observations == plain.observations


def test_a_line_pasted_twice_counts_once_and_two_intervals_count_twice(tmp_path):
    twice = observed(tmp_path, f"{LINE}\n{LINE}\n")
    assert twice.observations[0].transfers.whole() == (4, 4)
    assert "counted once" in twice.warnings[0]
    later = LINE.replace("10:00:00", "10:00:10")
    assert observed(tmp_path, f"{LINE}\n{later}\n").observations[0].transfers.whole() == (8, 8)


def test_a_line_wrapped_over_three_is_one_line(tmp_path):
    wrapped = LINE.replace(", P90", ",\nP90").replace(", Avg MB", ",\nAvg MB")
    assert observed(tmp_path, wrapped).observations[0].bytes == observed(tmp_path, LINE).observations[0].bytes


def test_a_line_inside_json_ends_at_its_quote(tmp_path):
    quoted = '{"level": "INFO"}\n{"message": "' + LINE + '"}\n'
    assert observed(tmp_path, quoted).observations[0].bytes == observed(tmp_path, LINE).observations[0].bytes


@pytest.mark.parametrize("figure", ["nan", "1e3", "-2.25", "2.2.5", "", "12,25"])
def test_a_size_that_is_no_number_is_never_read_in_part(tmp_path, figure):
    told = LINE.replace("transfer=2.25,", f"transfer={figure},")
    assert ":1:1" in fault(tmp_path, told)


def test_a_cut_line_is_told_by_its_number(tmp_path):
    told = fault(tmp_path, f"x\n{LINE.partition(', Avg MB')[0]}\n")
    assert ":2:1" in told
    assert "no Avg MB per transfer" in told


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "no line of a format"),
        (b"\x28\xb5\x2f\xfd\0", "compressed"),
        (b"\x1f\x8b\x08\0\0", "is cut: its gzip does not end"),
        ("KV Transfer metrics:".encode("utf-16"), "UTF-16"),
        (bytes(5000), "binary"),
        (b"x" * (2 << 20), "a line longer than 1 MiB"),
        (b"\n\n" + b"y" * (1 << 20) + b"zz\nq", "input:3:1"),
    ],
)
def test_what_is_no_log_is_told(tmp_path, data, words):
    assert words in fault(tmp_path, data)


def test_sizing_lines_are_read_and_several_values_leave_a_figure_unknown(tmp_path):
    text = "GPU KV cache size: 184,832 tokens\nAvailable KV cache memory: 28.20 GiB\n"
    seen = observed(tmp_path, text)
    assert seen.sizing["pool_tokens"].whole() == (184_832, 184_832)
    assert 163_840 * 184_832 in seen.sizing["available_bytes"]
    two = observed(tmp_path, text + "GPU KV cache size: 180,000 tokens\n")
    assert "pool_tokens" not in two.sizing
    assert "several values" in two.warnings[0]


def test_rates_of_tensorrt_llm_are_never_made_into_bytes(tmp_path):
    header = "RequestID,Delay(ms),Duration(ms),Bandwidth(Gbps),Delay(ms),Duration(ms),Bandwidth(Gbps)\n"
    for name in ("rank_0_send.csv", "rank_1_recv.csv"):
        (tmp_path / name).write_text(header + "7,0.5,10,80,0.5,20,40\n8,0.5,10,inf,0.5,10,80\n")
    seen = read_observations(str(tmp_path))
    assert [(one.rank, one.side) for one in seen.observations] == [("0", "prefill"), ("1", "decode")]
    assert seen.observations[0].bytes is None
    assert seen.observations[0].transfers.whole() == (4, 4)
    assert 5_000_000_000 in seen.observations[0].rates
    assert 10_000_000_000 in seen.observations[0].rates
    assert "a rate of inf" in seen.warnings[0]


def test_stretches_without_a_mark_are_passed_over_and_lines_keep_their_numbers(tmp_path):
    """Chunks of 64 KiB: a line across two of them, one behind megabytes of others, one in colour."""
    noise = "nothing of the kind\n" * 5000
    for before in ("", "x" * 65_500 + "\n", noise, "y" * ((1 << 20) - 5) + "\n"):
        for told in (LINE, LINE.replace("KV Transfer", "KV \x1b[1mTransfer\x1b[0m")):
            (seen,) = observed(tmp_path, f"{before}{told}\n{noise}{LINE.replace('10:00:00', '10:00:10')}").observations
            first = before.count("\n") + 1
            assert seen.lines == (first, first + 5001)
    assert "a line longer than 1 MiB" in fault(tmp_path, noise + "z" * (1 << 21) + f"\n{LINE}")
    assert "input:5001:1" in fault(tmp_path, noise + "z" * ((1 << 20) + 1) + "\nq\n" * 70_000)


@pytest.mark.parametrize(
    "header",
    [
        "RequestID,Bandwidth(Gbps),Duration(ms),Bandwidth(Gbps),Duration(ms)",
        "RequestID,Delay(ms),Bandwidth(Gbps),Delay(ms),Duration(ms)",
        "RequestID,Duration(ms),Bandwidth(Gbps),Duration(ms),x,Bandwidth(Gbps)",
    ],
)
def test_columns_of_tensorrt_llm_in_another_order_are_of_another_version(tmp_path, header):
    assert "columns of another version" in fault(tmp_path, f"{header}\n7,1,2,3,4,5\n")
