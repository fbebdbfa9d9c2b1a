"""Units: exact both ways, case-sensitive, and nothing guessed."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.units import (
    MAX_FIGURE,
    UnitError,
    format_bytes,
    format_rate,
    format_seconds,
    format_utilization,
    parse_bytes,
    parse_plain_seconds,
    parse_rate,
    parse_seconds,
    parse_utilization,
    seconds_number,
    write_bytes,
)

figures = st.integers(0, MAX_FIGURE)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3.35 TB", 3_350_000_000_000),
        ("2039 GB", 2_039_000_000_000),
        ("80 GiB", 85_899_345_920),
        ("228 KiB", 233_472),
        ("1.5 KiB", 1536),
        ("7.7 TB", 7_700_000_000_000),
        ("80GiB", 85_899_345_920),
        ("0 B", 0),
        ("8191.999999999999 PiB", None),
        ("9223372036854775807 B", MAX_FIGURE),
    ],
)
def test_reads_bytes_exactly(text, value):
    if value is None:
        with pytest.raises(UnitError, match="not a whole number"):
            parse_bytes(text)
    else:
        assert parse_bytes(text) == value


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("80", "unit missing"),
        ("", "is empty"),
        ("80 gb", "GB, GiB"),
        ("80 Gb", "bits"),
        ("400 Gbps", "bits"),
        ("80 Mb", "bits"),
        ("80 mb", "bits|MB, MiB"),
        ("80 KIB", "KB, KiB"),
        ("80 G", "GB, GiB"),
        ("80 Gi", "GB, GiB"),
        ("1.1 KiB", "not a whole number of bytes"),
        ("0.5 B", "not a whole number of bytes"),
        ("3.3.5 GB", "no quantity"),
        ("1e9 B", "no quantity"),
        ("-4 B", "no quantity"),
        ("+4 B", "no quantity"),
        ("1_000 B", "no quantity"),
        ("1,000 B", "no quantity"),
        (".5 KiB", "no quantity"),
        ("inf GB", "no quantity"),
        (".nan", "no quantity"),
        ("0x10 GiB", "unknown unit"),
        ("\uff18\uff10 GiB", "no quantity"),
        ("99999999 PiB", "2\\^63-1"),
        ("9223372036854775808 B", "2\\^63-1"),
        ("1" * 5000 + " B", "no quantity"),
        ("80 GB/s", "is a rate"),
    ],
)
def test_refuses_a_size_that_is_not_written_exactly_and_says_how(text, hint):
    with pytest.raises(UnitError, match=hint):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "network", "value"),
    [
        ("450 GB/s", False, 450_000_000_000),
        ("1 GiB/s", False, 2**30),
        ("400 Gb/s", True, 50_000_000_000),
        ("400 Gbit/s", True, 50_000_000_000),
        ("25.6 Gb/s", True, 3_200_000_000),
    ],
)
def test_reads_rates_in_bytes_and_for_networks_in_bits(text, network, value):
    assert parse_rate(text, network=network) == value


@pytest.mark.parametrize(
    ("text", "network", "hint"),
    [
        ("400 Gb/s", False, "kind net"),
        ("400 Gbps", True, "Gb/s"),
        ("450 gb/s", False, "GB/s, GiB/s"),
        ("450 GB", False, "rate is wanted"),
        ("450", False, "unit missing"),
        ("0.0000000001 Gb/s", True, "whole number of bytes per second"),
        ("1e400 GB/s", False, "no quantity"),
    ],
)
def test_refuses_a_rate_that_is_not_written_exactly(text, network, hint):
    with pytest.raises(UnitError, match=hint):
        parse_rate(text, network=network)


@pytest.mark.parametrize(
    ("text", "picoseconds"),
    [("9.79 us", 9_790_000), ("2 s", 2 * 10**12), ("1.5 ns", 1500), ("0 us", 0), ("3 \u00b5s", 3 * 10**6), ("7 ps", 7)],
)
def test_reads_seconds_as_whole_picoseconds(text, picoseconds):
    assert parse_seconds(text) == picoseconds


@pytest.mark.parametrize("text", ["5", "5 US", "0.5 ps", "5 min", "-1 us", "nan s"])
def test_refuses_a_time_without_a_known_unit_or_below_a_picosecond(text):
    with pytest.raises(UnitError):
        parse_seconds(text)


@pytest.mark.parametrize(
    ("text", "share"),
    [("0.9", Fraction(9, 10)), ("90 %", Fraction(9, 10)), ("1", Fraction(1)), ("92.5%", Fraction(37, 40))],
)
def test_reads_a_utilization_as_a_fraction(text, share):
    assert parse_utilization(text) == share


@pytest.mark.parametrize("text", ["0", "1.01", "101 %", "-0.5", "0.9x", "1e-3", "", "0.0000000000001", "nan"])
def test_refuses_a_utilization_outside_the_range(text):
    with pytest.raises(UnitError):
        parse_utilization(text)


def test_shows_exact_bytes_beside_a_readable_figure():
    assert format_bytes(1310720) == "1,310,720 B (1.25 MiB)"
    assert format_bytes(-1310720) == "-1,310,720 B (-1.25 MiB)"
    assert format_bytes(1023) == "1,023 B"
    assert format_bytes(1024) == "1,024 B (1 KiB)"
    assert format_bytes(1040128) == "1,040,128 B (1015.75 KiB)"
    assert format_bytes(2**20 - 1) == "1,048,575 B (1 MiB)"
    assert format_bytes(None) == "unknown"


def test_shows_rates_and_times_exactly_or_to_some_digits():
    assert format_rate(450 * 10**9) == "450 GB/s"
    assert format_rate(3350 * 10**9) == "3350 GB/s"
    assert format_rate(55_128_799_832) == "55.128799832 GB/s"
    assert format_rate(55_128_799_832, digits=3) == "55.1 GB/s"
    assert format_rate(999_999_999, digits=2) == "1 GB/s"
    assert format_seconds(9_790_000) == "9.79 us"
    assert format_seconds(123_456_789, digits=4) == "123.5 us"
    assert format_rate(None) == format_seconds(None) == "unknown"


@given(figures)
def test_bytes_are_read_back_as_they_are_written(value):
    assert parse_bytes(write_bytes(value)) == value
    assert int(format_bytes(value).split(" ")[0].replace(",", "")) == value


@given(figures)
def test_rates_and_times_are_read_back_as_they_are_formatted(value):
    assert parse_rate(format_rate(value)) == value
    assert parse_seconds(format_seconds(value)) == value


@given(st.integers(0, 10**15 - 1))
def test_a_json_number_of_seconds_below_a_thousand_keeps_every_picosecond(picoseconds):
    assert parse_plain_seconds(repr(seconds_number(picoseconds))) == picoseconds


@given(st.integers(1, 10**12))
def test_utilization_is_read_back_as_it_is_formatted(scaled):
    share = Fraction(scaled, 10**12)
    assert parse_utilization(format_utilization(share)) == share


@given(figures, figures)
def test_a_larger_figure_never_reads_as_smaller_when_shown(first, second):
    low, high = sorted((first, second))
    assert parse_rate(format_rate(low)) <= parse_rate(format_rate(high))


@given(st.text(max_size=60))
def test_any_text_is_a_quantity_or_a_unit_error(text):
    for parse in (parse_bytes, parse_rate, parse_seconds, parse_plain_seconds):
        try:
            value = parse(text)
        except UnitError as error:
            value, told = 0, str(error)
        else:
            told = "read"
        assert 0 <= value <= MAX_FIGURE
        assert told.isprintable()
        assert told
