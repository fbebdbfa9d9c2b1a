"""safetensors in parts: `model.safetensors.index.json` and the files that it names, headers only.

`weight_map` says which file holds a tensor; each file's own header is what is believed. What the two say is compared
both ways, and `metadata.total_size` with the sum.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import Any

from fleet.checkpoints.json_text import parse_object, shorten
from fleet.checkpoints.safetensors_header import read_safetensors
from fleet.checkpoints.source import FULL_DIGEST_LIMIT, open_regular, read_at, shown
from fleet.checkpoints.stored import MAX_TENSORS, Stored
from fleet.checkpoints.weight_files import MAX_FILES, inside, plain_name
from fleet.errors import MAX_FAULTS_TOLD, DescriptionError, Fault

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
MAX_INDEX_BYTES = 64 << 20
"""The index of a model of 140,000 tensors has some 14 MB."""

_PART = re.compile(r"(?P<stem>.+)-(?P<no>\d{5})-of-(?P<count>\d{5})\.(safetensors|gguf)")
_TOLD = 5
_AGAIN = "download the index again"


def part_of(name: str) -> tuple[str, int, int] | None:
    """(stem, number, count) of a file name such as `model-00002-of-00005.safetensors`; None for any other."""
    matched = _PART.fullmatch(name)
    return None if matched is None else (matched["stem"], int(matched["no"]), int(matched["count"]))


def read_index(path: str) -> tuple[dict[str, str], int | None]:
    """`weight_map` (tensor to file) and `total_size` of an index. Raises DescriptionError with every fault."""
    handle, size = open_regular(path)
    told = shown(path)
    if size > MAX_INDEX_BYTES:
        handle.close()
        raise DescriptionError.at(told, "", f"is larger than {MAX_INDEX_BYTES:,} bytes: no index; check the path")
    with handle:
        data = read_at(handle, 0, MAX_INDEX_BYTES + 1, path)
    # Counted first: what is counted here becomes Python objects below.
    if data.count(b",") > 2 * MAX_TENSORS or data.count(b"[") + data.count(b"{") > MAX_FILES:
        raise DescriptionError.at(told, "", f"is no flat map of at most {MAX_TENSORS:,} tensors; {_AGAIN}")
    document, _ = parse_object(data, told, MAX_INDEX_BYTES)
    return _weight_map(document, told), _total_size(document, told)


def read_sharded(folder: str, index: str) -> Stored:
    """The tensors of every file that the index file `index` of `folder` names.

    Raises DescriptionError with the faults of the index and of all files: absent, outside, damaged, contradictory.
    """
    path = inside(folder, index)
    if isinstance(path, Fault):
        raise DescriptionError(path)
    told = shown(os.path.join(folder, index))
    weight_map, total_size = read_index(path)
    names = sorted(set(weight_map.values()))
    stored = read_parts(folder, names)
    faults = _contradictions(weight_map, stored, told)
    if faults:
        raise DescriptionError(faults)
    warnings = list(stored.warnings)
    extra = [tensor.name for tensor in stored.tensors if tensor.name not in weight_map]
    if extra:
        warnings.append(f"{index} does not name {_some(extra)}, which the files hold; they are counted")
    summed = stored.nbytes
    if total_size is not None and summed is not None and total_size != summed:
        warnings.append(f"{index} says total_size {total_size:,} bytes; the tensors of its files sum to {summed:,}")
    return replace(stored, warnings=tuple(warnings))


def read_parts(folder: str, names: list[str]) -> Stored:
    """The tensors of the safetensors files `names` of `folder`. Raises DescriptionError with the faults of all."""
    faults: list[Fault] = []
    real: list[tuple[str, str]] = []
    for name in names:
        found = inside(folder, name)
        if isinstance(found, Fault):
            faults.append(found)
        else:
            real.append((name, found))
    whole = not faults and sum(os.stat(path).st_size for _, path in real) <= FULL_DIGEST_LIMIT
    parts: list[Stored] = []
    count = 0
    for name, path in real:
        if len(faults) > MAX_FAULTS_TOLD:
            break
        try:
            parts.append(_part(path, name, whole))
        except DescriptionError as error:
            faults += error.faults
            continue
        count += len(parts[-1].tensors)
        if count > MAX_TENSORS:
            faults.append(Fault(shown(folder), "", f"holds more than {MAX_TENSORS:,} tensors: no model is read"))
            break
    return _joined(parts, faults, folder)


def _part(path: str, name: str, whole: bool) -> Stored:
    handle, size = open_regular(path)
    with handle:
        return read_safetensors(handle, size, path, name=name, whole=whole)


def _joined(parts: list[Stored], faults: list[Fault], folder: str) -> Stored:
    tensors = [tensor for part in parts for tensor in part.tensors]
    where: dict[str, str] = {}
    for tensor in tensors:
        if tensor.name in where:
            words = f"is in {where[tensor.name]} and in {tensor.file}; remove the file that is not the model's"
            faults.append(Fault(shown(folder), shorten(tensor.name), words))
        where.setdefault(tensor.name, tensor.file)
    if faults:
        raise DescriptionError(faults)
    metadata: dict[str, object] = {}
    for part in parts:
        metadata.update(part.metadata)
    return Stored(
        format="safetensors",
        files=tuple(file for part in parts for file in part.files),
        tensors=tuple(tensors),
        metadata=metadata,
        warnings=tuple(word for part in parts for word in part.warnings),
    )


def _weight_map(document: dict[str, Any], told: str) -> dict[str, str]:
    found = document.get("weight_map")
    if not isinstance(found, dict):
        raise DescriptionError.at(told, "weight_map", f"must map tensors to files; {_AGAIN}")
    if not found:
        raise DescriptionError.at(told, "weight_map", f"is empty: it names no tensor; {_AGAIN}")
    bad = {shorten(name): None for name in found.values() if not plain_name(name)}
    if bad:
        raise DescriptionError(
            Fault(told, "weight_map", f"names {name}: must be the name of a file in the index's own folder; {_AGAIN}")
            for name in list(bad)[: MAX_FAULTS_TOLD + 1]
        )
    if len(set(found.values())) > MAX_FILES:
        raise DescriptionError.at(told, "weight_map", f"names more than {MAX_FILES:,} files; {_AGAIN}")
    return found


def _total_size(document: dict[str, Any], told: str) -> int | None:
    metadata = document.get("metadata")
    value = metadata.get("total_size") if isinstance(metadata, dict) else None
    # Some writers give it as a float of a whole number.
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if value is None or (type(value) is int and value >= 0):
        return value
    raise DescriptionError.at(
        told, "metadata.total_size", f"is {shorten(value)}: must be a number of bytes; correct it or leave it out"
    )


def _contradictions(weight_map: dict[str, str], stored: Stored, told: str) -> list[Fault]:
    """Faults where a named tensor is not in the file that the index names for it."""
    held = {tensor.name: tensor.file for tensor in stored.tensors}
    wrong = [(name, file) for name, file in weight_map.items() if held.get(name) != file]
    return [
        Fault(told, shorten(name), f"should be in {file}, {_where(held.get(name))}; {_AGAIN} or that file")
        for name, file in wrong[: MAX_FAULTS_TOLD + 1]
    ]


def _where(file: str | None) -> str:
    return "which does not hold it" if file is None else f"but is in {file}"


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _TOLD:,} more" if len(names) > _TOLD else ""
    return ", ".join(shorten(name) for name in names[:_TOLD]) + more
