"""What a file is, by its content: the kinds of document that kvwaybill knows, asked once a reader has refused one.

Recognising is the readers' own business (`fleet.readers.matching`, `knows` of the observations); here are only the
words, who takes what, and the signs of files that no reader of ours is asked for.
"""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Callable, Collection
from itertools import islice
from typing import Any

from scenarios.cli.kinds import TAKEN_BY, WORDS, kind_in

HEAD = 1 << 20
"""Bytes of a file that are looked at."""
_MOST_LINES = 20_000
_TRACES = ("timestamp,contexttokens,", "arrived_at,num_prefill_tokens", "arrival_timestamp,prompt_size")
_SERVE = re.compile(r"^\s*(?:[A-Za-z_/.0-9-]+\s+)*(?:vllm\s+serve|(?:-m\s+)?sglang\.launch_server)\b", re.M)


def kind_of_file(path: str) -> str | None:
    """The kind of the file or folder at `path`; None for pipes, for what is not there, and for what nobody knows."""
    try:
        if os.path.isdir(path):
            return _folder_kind(os.listdir(path))
        if not os.path.isfile(path):
            return None
        if (kind := kind_in(path)) is not None:
            return kind if kind in TAKEN_BY or kind in WORDS else None
        with open(path, "rb") as file:
            head = file.read(HEAD)
            size = os.fstat(file.fileno()).st_size
    except (OSError, ValueError):
        return None
    if not head.strip():
        return "empty"
    return _binary_kind(head, size) or _text_kind(head.decode("utf-8-sig", errors="replace"), len(head) == size)


def _folder_kind(names: list[str]) -> str | None:
    if "config.json" in names or any(name.endswith((".safetensors", ".gguf")) for name in names):
        return "model-folder"
    from scenarios.observations.trtllm_csv import FILE

    return "observation" if any(FILE.fullmatch(name) for name in names) else None


def _binary_kind(head: bytes, size: int) -> str | None:
    from fleet.checkpoints.foreign import is_tokenizer
    from scenarios.observations import nsight, trtllm_csv

    if head[:4] in (b"GGUF", b"FUGG") or (head[8:9] == b"{" and 0 not in head[8:16] and 0 in head[:8]):
        return "checkpoint"
    if nsight.matches(head) or trtllm_csv.matches(head):
        return "observation"
    if b"\0" not in head[:64]:
        return None
    if is_tokenizer(head, size):
        return "tokenizer"
    return "checkpoint" if _is_llama2c(head) else None


def _is_llama2c(head: bytes) -> bool:
    """A header of version 1, or of version 0, which has no magic: seven plausible dimensions."""
    if len(head) < 28 or head.startswith(b"24ka"):
        return len(head) >= 28
    dim, hidden, layers, heads, kv_heads, vocab, positions = struct.unpack_from("<7i", head)
    plain = all(1 <= value <= 1 << 20 for value in (dim, hidden, abs(vocab), positions)) and 1 <= layers <= 1000
    return plain and 1 <= kv_heads <= heads <= dim and dim % heads == 0


def _text_kind(text: str, whole: bool) -> str | None:
    """`whole`: the text is all of the file, so that it can be parsed."""
    first = text.lstrip()[:4096]
    if first.startswith("{"):
        kind = _json_kind(first, text if whole else "")
        if kind is not None:
            return kind
    if first.lower().startswith(_TRACES):
        return "trace"
    if first.startswith("<"):
        tag = re.sub(r"<[?!][^>]*>\s*", "", first)[:20].lower()
        if tag.startswith(("<html", "<svg")):
            return "page"
        if tag.startswith(("<testsuite", "<testsuites")):
            return "junit"
    return next((kind for kind, knows in _RECOGNISED.items() if knows(text)), None)


def _json_kind(first: str, text: str) -> str | None:
    """Of a JSON object, or of JSON lines whose first line is one."""
    try:
        value: Any = json.loads(first.splitlines()[0] if "\n" in first else text)
    except (ValueError, RecursionError):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return None
    keys = set(value) if isinstance(value, dict) else set()
    signs = {
        "records": {"request", "arrival_ps"},
        "trace": {"input_length", "output_length"},
        "timeline": {"traceEvents"},
        "json-schema": {"$schema"},
        "in-use": {"kind", "items"},
    }
    if kind := next((kind for kind, wanted in signs.items() if wanted <= keys), None):
        return kind
    if {"arrival_s", "prompt_tokens"} <= keys:
        return "trace"
    if "weight_map" in keys:
        return "checkpoint"
    if "model" in keys and isinstance(value["model"], dict) and "vocab" in value["model"]:
        return "tokenizer"
    return "model-config" if {"model_type", "architectures"} & keys else None


def _is_topology(text: str) -> bool:
    from fleet.readers import matching

    return bool(matching(text))


def _is_observation(text: str) -> bool:
    from scenarios.observations.registry import knows_line

    return any(knows_line(line) for line in islice(text.splitlines(), _MOST_LINES))


def _is_in_use(text: str) -> bool:
    first = text.lstrip().partition("\n")[0]
    return "memory.used" in first and "," in first


_RECOGNISED: dict[str, Callable[[str], bool]] = {
    "observation": _is_observation,
    "in-use": _is_in_use,
    "topology": _is_topology,
    "launch": lambda text: _SERVE.search(text) is not None,
}
"""By the readers' own signs, in the order of asking."""


def kind_of_name(name: str, wanted: Collection[str] = ()) -> str | None:
    """The kind of a shipped thing of that name, a wanted one first; None where there is none, or where a file is."""
    from fleet.catalog import catalog_names
    from fleet.checkpoints import SEEDED_NAME
    from fleet.checkpoints.shipped import shipped_model_file
    from scenarios.scenario import scenario_names
    from scenarios.simulation.read_spec import simulation_names
    from scenarios.sweeping.read_sweep import sweep_names

    if "\0" in name or os.path.lexists(name):
        return None
    if name == SEEDED_NAME or shipped_model_file(name) is not None:
        return "model-config"
    lists = {
        "scenario": scenario_names,
        "fleet": catalog_names,
        "simulation-scenario": simulation_names,
        "sweep": sweep_names,
    }
    order = sorted(lists, key=lambda kind: kind not in wanted)
    return next((kind for kind in order if name in lists[kind]()), None)
