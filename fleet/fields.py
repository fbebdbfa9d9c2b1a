"""How each value of `fleet.yaml` is written: the types of the fields of `fleet.schema`.

Values arrive as text, see `fleet.yaml_source`; a figure becomes a Quantity by `fleet.figures`.
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError
from pydantic_core.core_schema import ValidationInfo

from fleet import figures
from fleet.identity import ID_PATTERN
from fleet.machine import Quantity
from fleet.units import PS_PER_SECOND, UnitError, parse_bytes, parse_flops, parse_rate, parse_seconds, parse_utilization
from fleet.yaml_source import nearest, printable

MAX_LATENCY = 1000 * PS_PER_SECOND
"""Below this the JSON number `latency_s` carries picoseconds exactly."""
MAX_PLAIN_INT = 1_000_000
END_PATTERN = r"[A-Za-z0-9._/:*-]{1,64}"


def _refuse(message: str) -> PydanticCustomError:
    return PydanticCustomError("fleet", "{reason}", {"reason": message})


def _id(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(ID_PATTERN, value, re.ASCII):
        raise _refuse("must be 1 to 64 of A-Z a-z 0-9 . _ / : - (free text belongs in label)")
    return value


def _end(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(END_PATTERN, value, re.ASCII):
        raise _refuse("must be an id, or a pattern with * for any run of characters but /, e.g. node*/gpu:*")
    return value


def _prose(value: Any) -> str:
    if not figures.is_prose(value):
        raise _refuse(figures.PROSE_RULE)
    return unicodedata.normalize("NFC", value)


def _whole(value: Any) -> int:
    if not isinstance(value, str) or not re.fullmatch(r"0|[1-9][0-9]{0,6}", value, re.ASCII):
        raise _refuse("must be a plain whole number, e.g. 1 (no sign, no leading 0, no 0x, no decimals)")
    return int(value)


def _positive(value: Any) -> int:
    number = _whole(value)
    if not 1 <= number <= MAX_PLAIN_INT:
        raise _refuse(f"must be a whole number from 1 to {MAX_PLAIN_INT}")
    return number


def _flag(value: Any) -> bool:
    if value not in ("true", "false"):
        raise _refuse("must be true or false")
    return bool(value == "true")


def one_of(*words: str) -> BeforeValidator:
    def check(value: Any) -> str:
        if value not in words:
            hint = nearest(value, words) if isinstance(value, str) else ""
            raise _refuse(f"must be one of {', '.join(words)}{hint}")
        return str(value)

    return BeforeValidator(check)


def _share(value: Any) -> Fraction:
    try:
        return parse_utilization(value if isinstance(value, str) else "")
    except UnitError as error:
        raise _refuse(str(error)) from error


def _quantity(value: Any, info: ValidationInfo, parse: figures.Parser) -> Quantity:
    source = (info.context or {}).get("source", "")
    try:
        return figures.read_quantity(value, parse, source)
    except figures.FigureFaults as faults:
        raise PydanticCustomError("figure", "see ctx", {"faults": faults.faults}) from faults


def _size(value: Any, info: ValidationInfo) -> Quantity:
    return _quantity(value, info, _above_zero(parse_bytes))


def _size_or_none(value: Any, info: ValidationInfo) -> Quantity:
    return _quantity(value, info, parse_bytes)


def _rate(value: Any, info: ValidationInfo) -> Quantity:
    network = info.data.get("kind") == "net"
    return _quantity(value, info, _above_zero(lambda text: parse_rate(text, network=network)))


def _flops(value: Any, info: ValidationInfo) -> Quantity:
    return _quantity(value, info, _above_zero(parse_flops))


def _time(value: Any, info: ValidationInfo) -> Quantity:
    return _quantity(value, info, _below_the_bound)


def _below_the_bound(text: str) -> int:
    value = parse_seconds(text)
    if value >= MAX_LATENCY:
        raise UnitError(f"{printable(text)} is no latency of a link; it must lie below 1000 s")
    return value


def _bytes(value: Any, info: ValidationInfo) -> int:
    figure = _quantity(value, info, parse_bytes)
    if figure.value is None:
        raise _refuse("must be an amount, e.g. 1 GiB")
    return figure.value


def _above_zero(parse: figures.Parser) -> figures.Parser:
    def checked(text: str) -> int:
        value = parse(text)
        if value == 0:
            raise UnitError("0 is no figure here; leave the line out when it is not known or not there")
        return value

    return checked


Id = Annotated[str, BeforeValidator(_id), Field(pattern=f"^{ID_PATTERN}$")]
End = Annotated[str, BeforeValidator(_end), Field(pattern=f"^{END_PATTERN}$")]
Prose = Annotated[str, BeforeValidator(_prose), Field(max_length=figures.MAX_PROSE)]
Whole = Annotated[int, BeforeValidator(_whole)]
Count = Annotated[int, BeforeValidator(_positive), Field(ge=1, le=MAX_PLAIN_INT)]
Flag = Annotated[bool, BeforeValidator(_flag)]
Kind = Annotated[Literal["gpu", "cpu", "npu"], one_of("gpu", "cpu", "npu")]
LinkKind = Annotated[
    Literal["nvlink", "xgmi", "pcie", "c2c", "net", "host"], one_of("nvlink", "xgmi", "pcie", "c2c", "net", "host")
]
PeerAccess = Annotated[Literal["direct", "staged", "unknown"], one_of("direct", "staged", "unknown")]
Each = Annotated[Literal["pair", "all"], one_of("pair", "all")]
Duplex = Annotated[Literal["independent", "shared"], one_of("independent", "shared")]
Scope = Annotated[Literal["device", "sm", "cta", "thread"], one_of("device", "sm", "cta", "thread")]
Managed = Annotated[Literal["explicit", "cached"], one_of("explicit", "cached")]
Size = Annotated[Quantity, PlainValidator(_size), WithJsonSchema(figures.figure_json_schema("80 GiB"))]
SizeOrNone = Annotated[Quantity, PlainValidator(_size_or_none), WithJsonSchema(figures.figure_json_schema("1 GiB"))]
Rate = Annotated[Quantity, PlainValidator(_rate), WithJsonSchema(figures.figure_json_schema("450 GB/s"))]
Flops = Annotated[Quantity, PlainValidator(_flops), WithJsonSchema(figures.figure_json_schema("989 TFLOP/s"))]
Number = Annotated[
    Literal["fp32", "tf32", "bf16", "fp16", "fp8", "fp4", "int8"],
    one_of("fp32", "tf32", "bf16", "fp16", "fp8", "fp4", "int8"),
]
"""The types of numbers for which a fleet file states rates of multiplication."""
Time = Annotated[Quantity, PlainValidator(_time), WithJsonSchema(figures.figure_json_schema("9.79 us"))]
Amount = Annotated[int, PlainValidator(_bytes), WithJsonSchema({"type": "string", "examples": ["1 GiB"]})]
Share = Annotated[
    Fraction, PlainValidator(_share), WithJsonSchema({"type": ["string", "number"], "examples": [0.9, "90 %"]})
]
