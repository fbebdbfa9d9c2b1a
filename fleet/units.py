"""Parse and format bytes, rates, seconds and utilization exactly: integers and fractions, never floats.

The only file that knows 1024 and 1e9. SI prefixes (KB MB GB TB PB) are powers of 1000, IEC prefixes (KiB .. PiB) powers
of 1024; units are case-sensitive because Gb (bits) for GB (bytes) would be a silent factor of 8. A mantissa is kept as
text until the arithmetic, so `1.5 KiB` is 1536 and `1.1 KiB`, which is no whole number of bytes, is refused.
"""

from __future__ import annotations

import re
from fractions import Fraction

MAX_FIGURE = 2**63 - 1
"""No single figure may pass what a signed 64-bit integer holds."""

PS_PER_SECOND = 10**12
UTILIZATION_PLACES = 12
"""More decimals than this are refused: up to here a JSON number carries a utilization exactly."""

_SI = {f"{prefix}B": 1000**power for power, prefix in enumerate("KMGTP", start=1)}
_IEC = {f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGTP", start=1)}
GIB = _IEC["GiB"]
_BYTES = {"B": 1} | _SI | _IEC
_RATES = {f"{unit}/s": factor for unit, factor in _BYTES.items()}
_BIT_RATES = {"Gb/s": 10**9, "Gbit/s": 10**9}
_FLOPS = {"FLOP/s": 1} | {f"{prefix}FLOP/s": 1000**power for power, prefix in enumerate("KMGTP", start=1)}
_SECONDS = {"s": 10**12, "ms": 10**9, "us": 10**6, "\u00b5s": 10**6, "\u03bcs": 10**6, "ns": 10**3, "ps": 1}
_MAX_TEXT = 80
_TEXT = re.compile(r"([0-9]+)(?:\.([0-9]+))?[ ]*(.*)", re.ASCII)
_BARE = re.compile(r"[0-9]+(?:\.[0-9]+)?", re.ASCII)
_PERCENT = re.compile(r"([0-9]+(?:\.[0-9]+)?)[ ]*%", re.ASCII)


class UnitError(ValueError):
    """A quantity that cannot be read; the message says why and how to write it."""


def parse_bytes(text: str) -> int:
    """Bytes of `80 GiB`, `7.7 TB`, `512 B`. Raises UnitError; the result lies in 0..MAX_FIGURE."""
    return _scaled(text, _BYTES, "80 GiB", 1)


def parse_rate(text: str, *, network: bool = False) -> int:
    """Bytes per second of `450 GB/s`; with `network` also of `400 Gb/s` and `400 Gbit/s`. Raises UnitError."""
    bits = text.strip(" ").endswith(tuple(_BIT_RATES))
    if bits and not network:
        raise UnitError(f"{_quoted(text)} counts bits, which only a link of kind net may; write bytes, e.g. 50 GB/s")
    return _scaled(text, _BIT_RATES if bits else _RATES, "400 Gb/s" if bits else "450 GB/s", 8 if bits else 1)


def parse_flops(text: str) -> int:
    """Floating-point operations per second of `989 TFLOP/s`. Raises UnitError; the result lies in 0..MAX_FIGURE."""
    return _scaled(text, _FLOPS, "989 TFLOP/s", 1)


def parse_seconds(text: str) -> int:
    """Picoseconds of `9.79 us`. Units s, ms, us, ns, ps. Raises UnitError."""
    return _scaled(text, _SECONDS, "9.79 us", 1)


def parse_utilization(text: str) -> Fraction:
    """The share `0.9` or `90 %` as an exact fraction, 0 < share <= 1. Raises UnitError."""
    plain = text.strip(" ")
    percent = _PERCENT.fullmatch(plain)
    number = percent[1] if percent else plain
    if len(plain) > _MAX_TEXT or not _BARE.fullmatch(number):
        raise UnitError(f"{_quoted(text)} is no share; write e.g. 0.9 or 90 %")
    share = Fraction(number) / (100 if percent else 1)
    if not 0 < share <= 1:
        raise UnitError(f"{_quoted(text)} lies outside 0 < share <= 1; write e.g. 0.9 or 90 %")
    if (share * 10**UTILIZATION_PLACES).denominator != 1:
        raise UnitError(f"{_quoted(text)} has more than {UTILIZATION_PLACES} decimals; write e.g. 0.9")
    return share


def parse_plain_seconds(text: str) -> int:
    """Picoseconds of a JSON number of seconds (`9.79e-06`): the form that documents carry. Raises UnitError."""
    if len(text) > _MAX_TEXT or not re.fullmatch(r"[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?", text, re.ASCII):
        raise UnitError(f"{_quoted(text)} is no number of seconds; write e.g. 9.79e-06")
    picoseconds = Fraction(text) * PS_PER_SECOND
    if picoseconds.denominator != 1:
        raise UnitError(f"{_quoted(text)} is not a whole number of picoseconds")
    return _bounded(int(picoseconds), text)


def _scaled(text: str, units: dict[str, int], example: str, divisor: int) -> int:
    """digits x factor / 10^places / divisor, or the reason why that is no whole number in range."""
    plain = text.strip(" ")
    if not plain:
        raise UnitError(f"is empty; write a plain number and a unit, e.g. {example}")
    match = _TEXT.fullmatch(plain) if len(plain) <= _MAX_TEXT else None
    if match is None:
        raise UnitError(f"{_quoted(text)} is no quantity; write a plain number and a unit, e.g. {example}")
    whole, decimals, unit = match[1], match[2] or "", match[3]
    if unit not in units:
        raise UnitError(_unknown_unit(text, unit, units, example))
    scale = divisor * 10 ** len(decimals)
    value, rest = divmod(int(whole + decimals) * units[unit], scale)
    if rest:
        smallest = {
            "B": "bytes", "B/s": "bytes per second", "FLOP/s": "operations per second", "s": "picoseconds",
            "Gb/s": "bytes per second",
        }  # fmt: skip
        raise UnitError(f"{_quoted(text)} is not a whole number of {smallest[next(iter(units))]}")
    return _bounded(value, text)


def _bounded(value: int, text: str) -> int:
    if value > MAX_FIGURE:
        raise UnitError(f"{_quoted(text)} is larger than {MAX_FIGURE} (2^63-1), the bound of any figure")
    return value


def _unknown_unit(text: str, unit: str, units: dict[str, int], example: str) -> str:
    if unit == "":
        return f"{_quoted(text)}: unit missing; write e.g. {example}"
    if not re.match(r"[A-Za-z\u00b5\u03bc]", unit) or re.match(r"[eE][+-]?[0-9]", unit):
        return f"{_quoted(text)} is no quantity; write a plain number and a unit, e.g. {example}"
    if re.fullmatch(r"[kKMGTP]?i?(b|bit|bits|bps|b/s|bit/s)", unit):
        hint = (
            "counts bits; write bytes"
            if units is _BYTES
            else "is not read here; write bytes, or Gb/s on links of kind net"
        )
        return f"{_quoted(text)}: {unit} {hint}, e.g. {example}"
    if units is _BYTES and unit in _RATES:
        return f"{_quoted(text)} is a rate, and a size is wanted; write e.g. {example}"
    if units is _RATES and unit in _BYTES:
        return f"{_quoted(text)} is a size, and a rate is wanted; write e.g. {example}"
    near = ", ".join(_near_units(unit, units)) or ", ".join(name for name in units if name.isascii())
    return f"{_quoted(text)}: unknown unit {_quoted(unit)}; units are case-sensitive: {near}"


def _near_units(unit: str, units: dict[str, int]) -> list[str]:
    """The known units that `unit` may have meant: it in another case, or both readings of a lone prefix."""
    if units is _SECONDS:
        return [known for known in units if known.isascii() and known.lower() == unit.lower()]
    tail = "/s" if units is _RATES else ""
    prefix = unit[:1].upper()
    if unit.lower().removesuffix("/s") not in {
        form.lower() for form in (prefix, f"{prefix}i", f"{prefix}b", f"{prefix}ib")
    }:
        return []
    return [name for name in (f"{prefix}B{tail}", f"{prefix}iB{tail}") if name in units]


def _quoted(text: str) -> str:
    """The text for a message, cut when it is long, with anything unprintable escaped."""
    return ascii(text if len(text) <= 40 else text[:37] + "...").replace("'", "")


def format_bytes(value: int | None) -> str:
    """`1,310,720 B (1.25 MiB)`: exact bytes, and the nearest hundredth of the largest IEC unit. None: `unknown`."""
    if value is None:
        return "unknown"
    if abs(value) < 1024:
        return f"{value:,} B"
    return f"{value:,} B ({_rounded_iec(value)})"


def _rounded_iec(value: int) -> str:
    names = list(_IEC)
    for name in names:
        hundredths = round(Fraction(abs(value) * 100, _IEC[name]))
        if hundredths < 102400 or name == names[-1]:
            break
    sign = "-" if value < 0 else ""
    return f"{sign}{_decimal(hundredths, 2)} {name}"


def write_bytes(value: int) -> str:
    """The shortest exact form that `parse_bytes` reads back: `80 GiB`, `1.25 MiB`, `1310721 B`."""
    for name in reversed(_IEC):
        thousandths = Fraction(value * 1000, _IEC[name])
        if value and thousandths.denominator == 1 and value >= _IEC[name]:
            return f"{_decimal(int(thousandths), 3)} {name}"
    return f"{value} B"


def format_rate(value: int | None, *, digits: int | None = None) -> str:
    """`450 GB/s`. Exact, and read back by `parse_rate`, unless `digits` significant digits are asked for."""
    if value is None:
        return "unknown"
    units = [("PB/s", 15), ("TB/s", 12), ("GB/s", 9), ("MB/s", 6), ("KB/s", 3), ("B/s", 0)]
    if value >= 10**12:
        units = units[2:]  # rates between devices are compared in GB/s, also above one TB/s
    return _with_unit(value, units, digits)


def format_flops(value: int | None, *, digits: int | None = None) -> str:
    """`989 TFLOP/s`. Exact, and read back by `parse_flops`, unless `digits` significant digits are asked for."""
    if value is None:
        return "unknown"
    powers = [(f"{prefix}FLOP/s", 3 * power) for power, prefix in enumerate("KMGTP", start=1)]
    return _with_unit(value, [*reversed(powers), ("FLOP/s", 0)], digits)


def format_seconds(picoseconds: int | None, *, digits: int | None = None) -> str:
    """`9.79 us`. Exact, and read back by `parse_seconds`, unless `digits` significant digits are asked for."""
    if picoseconds is None:
        return "unknown"
    return _with_unit(picoseconds, [("s", 12), ("ms", 9), ("us", 6), ("ns", 3), ("ps", 0)], digits)


def format_utilization(share: Fraction) -> str:
    """`0.9`: the exact decimal; `a/b` where there is none."""
    scaled = share * 10**UTILIZATION_PLACES
    return _decimal(int(scaled), UTILIZATION_PLACES) if scaled.denominator == 1 else str(share)


def seconds_number(picoseconds: int) -> float:
    """Seconds as the JSON number of documents: the nearest float, exact when read back below 1,000 s."""
    return picoseconds / PS_PER_SECOND


def _with_unit(value: int, units: list[tuple[str, int]], digits: int | None) -> str:
    sign, size = ("-" if value < 0 else ""), abs(value)
    if digits is not None:
        places = max(0, len(str(size)) - digits)
        size = round(Fraction(size, 10**places)) * 10**places
    name, places = next(((name, places) for name, places in units if size >= 10**places), units[-1])
    return f"{sign}{_decimal(size, places)} {name}"


def _decimal(scaled: int, places: int) -> str:
    """scaled / 10^places as text without trailing zeros."""
    if places == 0:
        return str(scaled)
    whole, rest = divmod(scaled, 10**places)
    tail = f"{rest:0{places}d}".rstrip("0")
    return f"{whole}.{tail}" if tail else str(whole)
