"""JSON objects written by others: bounded, without double keys, and with the place of each key for messages.

`Infinity` and `NaN` are accepted, as Python's and most libraries' writers emit them.
"""

from __future__ import annotations

import json
import re
from typing import Any

from fleet.errors import DescriptionError, Fault

MAX_BYTES = 16 << 20
MAX_DEPTH = 64

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],]', re.DOTALL)
_COLON = re.compile(r"\s*:")


def parse_object(data: bytes, source: str, limit: int = MAX_BYTES) -> tuple[dict[str, Any], str]:
    """The object in `data`, and its text. Raises DescriptionError: no UTF-8, no JSON object, double keys, too deep."""
    if len(data) > limit:
        raise DescriptionError.at(source, "", f"is larger than {limit:,} bytes: no config; check the path")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DescriptionError.at(source, "", f"is not UTF-8 at byte {error.start}; save it as UTF-8") from None
    doubled: list[str] = []

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            seen: set[str] = set()
            doubled.extend(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        return found

    try:
        parsed = json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        raise DescriptionError.at(
            source, "", f"is no valid JSON: {error.msg}; mend it", error.lineno, error.colno
        ) from None
    except RecursionError:
        raise DescriptionError.at(source, "", f"is nested deeper than {MAX_DEPTH} levels: no config") from None
    except ValueError:
        # Python refuses integers of thousands of digits.
        raise DescriptionError.at(source, "", "holds a number of thousands of digits; mend it") from None
    if not isinstance(parsed, dict):
        raise DescriptionError.at(source, "", "holds JSON, but no object; give a model's config.json")
    if _is_deep(parsed):
        raise DescriptionError.at(source, "", f"is nested deeper than {MAX_DEPTH} levels: no config")
    if doubled:
        raise DescriptionError(Fault(source, shorten(key), "stands twice; keep one") for key in doubled)
    return parsed, text


def key_places(text: str, wanted: set[str]) -> dict[str, tuple[int, int]]:
    """Line and column, from 1, of the `wanted` keys of the outermost object in valid JSON `text`."""
    places: dict[str, tuple[int, int]] = {}
    depth = 0
    for token in _TOKEN.finditer(text):
        mark = token[0]
        if mark in ("{", "["):
            depth += 1
        elif mark in ("}", "]"):
            depth -= 1
        elif depth == 1 and mark != "," and _COLON.match(text, token.end()):
            key = json.loads(mark)
            # Counting lines is for the few keys that are told: a hostile file may hold a million.
            if key in wanted:
                start = token.start()
                line_start = text.rfind("\n", 0, start) + 1
                places[key] = (text.count("\n", 0, start) + 1, start - line_start + 1)
    return places


def shorten(value: object, limit: int = 60) -> str:
    """`value` as a message may quote it."""
    # Slicing first keeps a hostile value of megabytes out of repr.
    text = value[: limit + 1] if isinstance(value, str) else repr(value)
    text = "".join(c if c.isprintable() else "?" for c in text)
    return text if len(text) <= limit else text[:limit] + "..."


def _is_deep(value: object) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            inner
            for outer in level
            if isinstance(outer, (dict, list))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return False
    return True
