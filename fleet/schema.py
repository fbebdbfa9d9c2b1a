"""The shape of `fleet.yaml` version 1 as pydantic models: which fields there are, and how each value is written.

What joins fields (ids, link ends, indices) is checked in `fleet.references`. Values arrive as text, see
`fleet.yaml_source`; a figure becomes a Quantity by `fleet.figures`.
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError
from pydantic_core.core_schema import ValidationInfo

from fleet import figures
from fleet.identity import ID_PATTERN
from fleet.machine import UNKNOWN, Quantity
from fleet.units import PS_PER_SECOND, UnitError, parse_bytes, parse_rate, parse_seconds, parse_utilization
from fleet.yaml_source import Path, nearest, printable

SCHEMA = "kvwaybill/fleet/1"
MAX_LATENCY = 1000 * PS_PER_SECOND
"""Below this the JSON number `latency_s` carries picoseconds exactly."""
MAX_PLAIN_INT = 1_000_000


def _refuse(message: str) -> PydanticCustomError:
    return PydanticCustomError("fleet", "{reason}", {"reason": message})


def _id(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(ID_PATTERN, value, re.ASCII):
        raise _refuse("must be 1 to 64 of A-Z a-z 0-9 . _ / : - (free text belongs in label)")
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


def _one_of(*words: str) -> BeforeValidator:
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
Prose = Annotated[str, BeforeValidator(_prose), Field(max_length=figures.MAX_PROSE)]
Whole = Annotated[int, BeforeValidator(_whole)]
Count = Annotated[int, BeforeValidator(_positive), Field(ge=1, le=MAX_PLAIN_INT)]
Flag = Annotated[bool, BeforeValidator(_flag)]
Kind = Annotated[Literal["gpu", "cpu", "npu"], _one_of("gpu", "cpu", "npu")]
LinkKind = Annotated[
    Literal["nvlink", "xgmi", "pcie", "c2c", "net", "host"], _one_of("nvlink", "xgmi", "pcie", "c2c", "net", "host")
]
PeerAccess = Annotated[Literal["direct", "staged", "unknown"], _one_of("direct", "staged", "unknown")]
Size = Annotated[Quantity, PlainValidator(_size), WithJsonSchema(figures.figure_json_schema("80 GiB"))]
SizeOrNone = Annotated[Quantity, PlainValidator(_size_or_none), WithJsonSchema(figures.figure_json_schema("1 GiB"))]
Rate = Annotated[Quantity, PlainValidator(_rate), WithJsonSchema(figures.figure_json_schema("450 GB/s"))]
Time = Annotated[Quantity, PlainValidator(_time), WithJsonSchema(figures.figure_json_schema("9.79 us"))]
Amount = Annotated[int, PlainValidator(_bytes), WithJsonSchema({"type": "string", "examples": ["1 GiB"]})]
Share = Annotated[
    Fraction, PlainValidator(_share), WithJsonSchema({"type": ["string", "number"], "examples": [0.9, "90 %"]})
]


class FilePart(BaseModel):
    """A mapping of a fleet file: unknown fields are refused, `x-` fields are notes."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", arbitrary_types_allowed=True, json_schema_extra={"patternProperties": {"^x-": {}}}
    )

    @model_validator(mode="before")
    @classmethod
    def _nothing_is_left_out(cls, data: Any) -> Any:
        """A known field with nothing behind it counts as left out."""
        if not isinstance(data, dict) or None not in data.values():
            return data
        known = {field.alias or name for name, field in cls.model_fields.items()}
        return {key: value for key, value in data.items() if value is not None or key not in known}


class MemoryFile(FilePart):
    """One memory of a device or of a SKU."""

    name: Id
    role: Prose = "main"
    capacity: Size = UNKNOWN
    bandwidth: Rate = UNKNOWN
    granule: Size = UNKNOWN


class SkuFile(FilePart):
    """What every device of one kind has in common."""

    kind: Kind
    arch: Prose | None = None
    label: Prose | None = None
    memories: tuple[MemoryFile, ...] = ()
    default_memory: Id | None = None
    runtime: SizeOrNone | None = None


class DeviceFile(FilePart):
    """One device. A field given here stands in place of its SKU's."""

    id: Id
    sku: Id | None = None
    kind: Kind | None = None
    arch: Prose | None = None
    label: Prose | None = None
    host: Id | None = None
    index: Whole | None = None
    memories: tuple[MemoryFile, ...] | None = None
    default_memory: Id | None = None
    runtime: SizeOrNone | None = None
    uuid: Prose | None = None
    pci: Prose | None = None
    numa: Whole | None = None


class HostFile(FilePart):
    """One host: no hard capacity; `pinned_pool` bounds what a staged copy may bounce through."""

    id: Id
    label: Prose | None = None
    pinned_pool: SizeOrNone = UNKNOWN
    numa_nodes: Count | None = None


class LinkFile(FilePart):
    """One one-way link, or both directions with `bidirectional`. bandwidth: all `count` lanes, one direction."""

    src: Id = Field(alias="from")
    dst: Id = Field(alias="to")
    kind: LinkKind
    count: Count = 1
    bandwidth: Rate = UNKNOWN
    latency: Time = UNKNOWN
    peer_access: PeerAccess | None = None
    bidirectional: Flag = False


class BudgetFile(FilePart):
    """How much of a capacity plans may use."""

    utilization: Share | None = None
    reserve: Amount = 0


class FleetFile(FilePart):
    """A whole fleet.yaml."""

    schema_name: Annotated[Literal["kvwaybill/fleet/1"], _one_of(SCHEMA)] = Field(alias="schema")
    name: Id
    label: Prose | None = None
    skus: dict[Id, SkuFile] = Field(default_factory=dict)
    hosts: tuple[HostFile, ...] = ()
    devices: tuple[DeviceFile, ...]
    links: tuple[LinkFile, ...] = ()
    budget: BudgetFile = Field(default_factory=BudgetFile)


def fleet_schema() -> dict[str, Any]:
    """The JSON Schema of fleet.yaml version 1."""
    return FleetFile.model_json_schema(by_alias=True)


def validate(data: Any, source: str) -> tuple[FleetFile | None, list[tuple[Path, str, bool]]]:
    """The file's model, or None and every fault of shape as (path, message, at the key rather than at the value).

    `source` is what figures without a source of their own are said to come from.
    """
    try:
        return FleetFile.model_validate(data, context={"source": source}), []
    except ValidationError as error:
        found: list[tuple[Path, str, bool]] = []
        for row in error.errors(include_url=False):
            found.extend(_told(row["loc"], row["type"], row.get("ctx", {}), row["input"]))
        return None, found


def _told(loc: Path, kind: str, ctx: dict[str, Any], value: Any) -> list[tuple[Path, str, bool]]:
    loc = tuple(step for step in loc if step != "[key]")
    if kind == "figure":
        return [((*loc, *path), message, "no such field" in message) for path, message in ctx["faults"]]
    if kind == "fleet":
        return [(loc, ctx["reason"], False)]
    if kind == "extra_forbidden":
        known = _fields(loc[:-1])
        return [(loc, f"no such field{nearest(str(loc[-1]), known)} (fields: {', '.join(known)})", True)]
    if kind == "missing":
        return [(loc, f"is missing{_EXAMPLES.get(str(loc[-1]), '')}", False)]
    if kind == "tuple_type":
        return [(loc, "must be a list: lines that begin with -", False)]
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return [(loc, "must be a mapping: lines of the form field: value", False)]
    return [(loc, f"cannot be read ({printable(kind)})", False)]


_EXAMPLES = {
    "schema": f"; begin the file with schema: {SCHEMA}",
    "name": "; write one word, e.g. name: main",
    "kind": "; write e.g. kind: gpu for a sku, kind: nvlink for a link",
    "id": "; write e.g. id: gpu:0",
    "from": "; write the id at which the link begins, e.g. from: gpu:0",
    "to": "; write the id at which the link ends, e.g. to: gpu:1",
    "devices": "; a fleet has at least one device",
}


def _fields(path: Path) -> list[str]:
    """The fields of the mapping at `path`."""
    sections: dict[str, type[FilePart]] = {
        "skus": SkuFile,
        "hosts": HostFile,
        "devices": DeviceFile,
        "links": LinkFile,
        "budget": BudgetFile,
    }
    model: type[FilePart] = sections.get(str(path[0]), FleetFile) if path else FleetFile
    if "memories" in path[2:]:
        model = MemoryFile
    return [field.alias or name for name, field in model.model_fields.items()]
