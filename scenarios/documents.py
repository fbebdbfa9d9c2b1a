"""Reads, checks and writes the JSON documents. The only file that turns a path into a document and back.

A document read here may come from anybody: its size, depth and number of values are bounded before and while it is
parsed, and every field that later code reads has been checked when `read_document` returns.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import stat
import sys
from collections.abc import Collection, Iterable
from typing import Any, NoReturn

from fleet.errors import DescriptionError
from scenarios.orders_json import check_orders, orders_from_document
from scenarios.plan_agrees import check_plan
from scenarios.schemas import SHAPES, VERSION
from scenarios.shapes import Sink, shown

__all__ = [
    "canonical",
    "check_writable",
    "orders_from_document",
    "plan_id",
    "pretty",
    "read_bytes",
    "read_document",
    "write_data",
    "write_document",
    "write_lines",
]

MAX_BYTES = 256 * 2**20
MAX_VALUES = 10_000_000
"""Upper bound of values in one document; a file of 256 MiB of `[[],[],` would take gigabytes as Python objects."""
MAX_DEPTH = 64

Document = dict[str, Any]


def canonical(document: Document) -> bytes:
    """The bytes that digests are taken of: sorted keys, no blanks, UTF-8. ValueError for NaN or infinity.

    A lone surrogate (an argument that was not UTF-8) has no UTF-8 form and is written as its JSON escape.
    """
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", errors="backslashreplace")


def digest_of(document: Document) -> str:
    """sha256 (hex) of the canonical document."""
    return hashlib.sha256(canonical(document)).hexdigest()


def plan_id(document: Document) -> str:
    """The digest of a plan without its `id`."""
    return digest_of({key: value for key, value in document.items() if key != "id"})


def pretty(document: Any) -> str:
    """JSON for people: keys in the document's order, one entry a line, plain lists and objects on one line."""
    return _pretty(document, "") + "\n"


def _pretty(value: Any, indent: str) -> str:
    if not isinstance(value, (dict, list)) or not any(isinstance(v, (dict, list)) for v in _values(value)):
        return json.dumps(value, allow_nan=False)
    inner = indent + "  "
    if isinstance(value, dict):
        lines = [f"{inner}{json.dumps(str(key))}: {_pretty(entry, inner)}" for key, entry in value.items()]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    return "[\n" + ",\n".join(inner + _pretty(entry, inner) for entry in value) + f"\n{indent}]"


def _values(value: dict[str, Any] | list[Any]) -> Collection[Any]:
    return value.values() if isinstance(value, dict) else value


def read_document(path: str, kinds: Collection[str]) -> Document:
    """The document at `path` (`-` = stdin), of one of `kinds` (plan, run, comparison, proof, admissions).

    Keys that are not known are kept. Raises DescriptionError with every fault found, each with its JSON path; a plan
    whose `id` no longer fits its content is refused, because it can only have been edited.
    """
    return checked_document(read_bytes(path), "<stdin>" if path == "-" else path, kinds)


def checked_document(data: bytes, source: str, kinds: Collection[str]) -> Document:
    """The same of bytes that were read already."""
    document = parse_document(data, source)
    kind = _kind_of(document, kinds, source)
    sink = Sink(source)
    SHAPES[kind](document, "", sink)
    for at, plan in _plans_in(document, kind):
        if isinstance(plan.get("orders"), dict):
            check_orders(plan["orders"], f"{at}orders", sink)
        elif plan.get("verdict") == "admitted" and not plan.get("not_run"):
            sink.add(f"{at}orders", "missing; an admitted plan has orders, or says in not_run why it has none")
    sink.raise_if_any()
    for at, plan in _plans_in(document, kind):
        check_plan(plan, at.rstrip("."), sink)
        if plan["id"] != plan_id(plan):
            sink.add(f"{at}id", "does not fit the content: the plan was edited by hand; admit again (kvwaybill admit)")
    sink.raise_if_any()
    return document


def _plans_in(document: Document, kind: str) -> list[tuple[str, Document]]:
    if kind == "plan":
        return [("", document)]
    if kind == "admissions" and isinstance(document.get("plans"), list):
        return [(f"plans[{i}].", plan) for i, plan in enumerate(document["plans"]) if isinstance(plan, dict)]
    return []


def parse_document(data: bytes, source: str) -> Document:
    """A JSON object from bytes. DescriptionError for anything else; never another exception."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DescriptionError.at(source, "", f"not UTF-8 at byte {error.start}; JSON documents are UTF-8") from error
    if sum(text.count(mark) for mark in ",[{") > MAX_VALUES:
        raise DescriptionError.at(source, "", f"more than {MAX_VALUES:,} values; not a document of kvwaybill")
    try:
        value = json.loads(
            text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite, parse_int=_bounded
        )
    except json.JSONDecodeError as error:
        message = f"not JSON: {error.msg}"
        raise DescriptionError.at(source, "", message, error.lineno, error.colno) from error
    except _RefusedValueError as error:
        raise DescriptionError.at(source, error.field, error.message) from error
    except RecursionError:
        raise DescriptionError.at(source, "", f"nested deeper than {MAX_DEPTH} levels") from None
    if not isinstance(value, dict):
        raise DescriptionError.at(source, "", f"wanted a JSON object, found {shown(value)}")
    if _depth(value) > MAX_DEPTH:
        raise DescriptionError.at(source, "", f"nested deeper than {MAX_DEPTH} levels")
    return value


class _RefusedValueError(Exception):
    """A value that is legal for Python's JSON reader and not for us. Not a ValueError: json would not pass it on."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field
        self.message = message


def _unique(pairs: list[tuple[str, Any]]) -> Document:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise _RefusedValueError(shown(twice), "stands twice in one object; keep one")
    return found


def _no_constant(word: str) -> NoReturn:
    raise _RefusedValueError("", f"{word} is not JSON; an unknown figure is null")


def _finite(digits: str) -> float:
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        raise _RefusedValueError("", f"{shown(digits)} is no finite number")
    return value


def _bounded(digits: str) -> int:
    if len(digits) > 40:
        raise _RefusedValueError("", f"a number of {len(digits)} digits; figures here have at most 19")
    return int(digits)


def _depth(value: Any) -> int:
    """Levels of nesting, without recursion."""
    level = [value]
    depth = 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            break
        level = [child for item in level for child in _values(item) if isinstance(child, (dict, list))]
    return depth


def _kind_of(document: Document, kinds: Collection[str], source: str) -> str:
    schema = document.get("schema")
    wanted = " or ".join(f"kvwaybill/{kind}/{VERSION}" for kind in kinds)
    if not isinstance(schema, str):
        raise DescriptionError.at(source, "schema", f"missing; wanted {wanted}")
    parts = schema.split("/")
    if len(parts) != 3 or parts[0] != "kvwaybill" or parts[1] not in SHAPES:
        raise DescriptionError.at(source, "schema", f"{shown(schema)} is not known; wanted {wanted}")
    if parts[2] != str(VERSION):
        raise DescriptionError.at(
            source, "schema", f"{shown(schema)}: this version reads number {VERSION}; use the kvwaybill that wrote it"
        )
    if parts[1] not in kinds:
        raise DescriptionError.at(source, "schema", f"a {parts[1]} document stands here; wanted {wanted}")
    return parts[1]


def read_bytes(path: str) -> bytes:
    """At most MAX_BYTES of a file, pipe or stdin. Devices such as /dev/zero are refused: they do not end."""
    if path == "-":
        data = sys.stdin.buffer.read(MAX_BYTES + 1)
    else:
        try:
            with open(path, "rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
                    raise DescriptionError.at(path, "", "is a device, not a file")
                data = file.read(MAX_BYTES + 1)
        except (OSError, ValueError) as error:
            raise DescriptionError.at(path, "", f"cannot be read: {_reason(error)}") from error
    if len(data) > MAX_BYTES:
        raise DescriptionError.at(path, "", f"larger than {MAX_BYTES // 2**20} MiB; not a document of kvwaybill")
    return data


def _reason(error: OSError | ValueError) -> str:
    """The system's words; ValueError is what Python says to a path with a NUL in it."""
    if isinstance(error, IsADirectoryError):
        return "it is a folder; name a file"
    return (error.strerror or str(error)) if isinstance(error, OSError) else "not a path"


def write_document(path: str, document: Document) -> None:
    """Write the document to `path` whole or not at all; `-` = stdout.

    A file is written beside its place and renamed into it. Pipes and devices (`/dev/stdout`) are written to directly.
    Raises DescriptionError when the path cannot be written; what stood there before is then untouched.
    """
    write_text(path, pretty(document))


def write_text(path: str, text: str) -> None:
    """As `write_document`, for finished text."""
    if path == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    write_data(path, text.encode("utf-8", errors="surrogateescape"))


def write_lines(path: str, lines: Iterable[str]) -> None:
    """As `write_document`, for lines with their ends, written as they come: they need not be in memory together."""
    if path == "-":
        sys.stdout.writelines(lines)
        sys.stdout.flush()
        return
    _write_parts(path, (line.encode("utf-8", errors="surrogateescape") for line in lines))


def write_data(path: str, data: bytes) -> None:
    """As `write_document`, for finished bytes; not for stdout."""
    _write_parts(path, (data,))


def _write_parts(path: str, parts: Iterable[bytes]) -> None:
    try:
        target = os.path.realpath(path)
        if os.path.lexists(target) and not stat.S_ISREG(os.stat(target).st_mode):
            with open(target, "wb") as file:
                file.writelines(parts)
            return
        _write_beside(target, parts)
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from error


def _write_beside(target: str, parts: Iterable[bytes]) -> None:
    beside = f"{target}.{os.getpid()}.part"
    # O_EXCL: a file or link that somebody laid there is never written through.
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with open(handle, "wb") as file:
            file.writelines(parts)
        os.replace(beside, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise


def check_writable(path: str) -> None:
    """Raise DescriptionError now for a path that `write_document` could not write, before long work is done."""
    if path == "-":
        return
    try:
        target = os.path.realpath(path)
        if os.path.isdir(target):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        folder = os.path.dirname(target)
        if not os.path.isdir(folder):
            raise FileNotFoundError(errno.ENOENT, f"no folder {folder}")
        special = os.path.lexists(target) and not stat.S_ISREG(os.stat(target).st_mode)
        if not os.access(target if special else folder, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from error


def _unwritable(path: str, error: OSError | ValueError) -> DescriptionError:
    return DescriptionError.at(shown(path) if "\0" in path else path, "", f"cannot be written: {_reason(error)}")
