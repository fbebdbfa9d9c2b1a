"""GGUF models in several files, `NAME-00001-of-00003.gguf`: the parts beside the one that is given, read as one.

The first part holds the model's metadata; each names its number, the number of parts and of all tensors
(llama.cpp, `gguf-split`).
"""

from __future__ import annotations

import os
from typing import BinaryIO

from fleet.checkpoints.gguf_header import read_gguf
from fleet.checkpoints.gguf_model import gguf_model
from fleet.checkpoints.json_text import shorten
from fleet.checkpoints.safetensors_index import part_of
from fleet.checkpoints.source import FULL_DIGEST_LIMIT, model_name, open_regular, shown
from fleet.checkpoints.stored import MAX_TENSORS, Stored
from fleet.checkpoints.weight_files import MAX_FILES, inside
from fleet.errors import MAX_FAULTS_TOLD, DescriptionError, Fault
from fleet.model import Model

NO, COUNT, TENSORS = "split.no", "split.count", "split.tensors.count"


def read_gguf_parts(handle: BinaryIO, size: int, path: str) -> Stored:
    """The tensors of an open GGUF file, and of the other parts beside it when it is one of several.

    Raises DescriptionError with the faults of all parts: absent, of another model, out of number, damaged.
    """
    stored = read_gguf(handle, size, path)
    count = stored.metadata.get(COUNT, 1)
    if type(count) is not int or not 0 <= count <= MAX_FILES:
        raise DescriptionError.at(
            shown(path), COUNT, f"is {shorten(count)}: must be 1 to {MAX_FILES:,}; split it again"
        )
    if count <= 1:
        return stored
    name = part_of(os.path.basename(path))
    if name is None or name[2] != count:
        raise DescriptionError.at(
            shown(path),
            COUNT,
            f"says that this is one of {count} parts, its name does not; name the parts "
            f"NAME-00001-of-{count:05}.gguf to NAME-{count:05}-of-{count:05}.gguf",
        )
    return _join(os.path.dirname(path) or ".", name[0], count)


def read_gguf_given(handle: BinaryIO, size: int, path: str) -> Model:
    """The model of an open GGUF file and its other parts."""
    part = part_of(os.path.basename(path))
    stem = shown(part[0]) if part is not None else model_name(path)
    return gguf_model(read_gguf_parts(handle, size, path), path, stem)


def _join(folder: str, stem: str, count: int) -> Stored:
    faults: list[Fault] = []
    parts: list[Stored] = []
    real = [inside(folder, f"{stem}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1)]
    whole = sum(os.stat(path).st_size for path in real if isinstance(path, str)) <= FULL_DIGEST_LIMIT
    for number, path in enumerate(real):
        if len(faults) > MAX_FAULTS_TOLD or sum(len(part.tensors) for part in parts) > MAX_TENSORS:
            break
        if isinstance(path, Fault):
            faults.append(path)
            continue
        try:
            handle, size = open_regular(path)
            with handle:
                name = f"{stem}-{number + 1:05}-of-{count:05}.gguf"
                parts.append(read_gguf(handle, size, path, name=shown(name), whole=whole))
        except DescriptionError as error:
            faults += error.faults
            continue
        faults += _number_faults(parts[-1], number, count, shown(path))
    if not faults:
        faults += _joint_faults(parts, shown(os.path.join(folder, stem)))
    if faults:
        raise DescriptionError(faults)
    return Stored(
        format="gguf",
        files=tuple(file for part in parts for file in part.files),
        tensors=tuple(tensor for part in parts for tensor in part.tensors),
        metadata=parts[0].metadata,
        unknown=tuple(dict.fromkeys(word for part in parts for word in part.unknown)),
        warnings=tuple(word for part in parts for word in part.warnings),
    )


def _number_faults(part: Stored, number: int, count: int, told: str) -> list[Fault]:
    said = part.metadata.get(NO), part.metadata.get(COUNT)
    if said == (number, count):
        return []
    words = f"{shorten(said[0])} of {shorten(said[1])}, counted from 0; its name says {number} of {count}"
    return [Fault(told, NO, f"says that it is part {words}; put the parts of one model together")]


def _joint_faults(parts: list[Stored], told: str) -> list[Fault]:
    """Faults of the whole: a tensor in two parts, another number of tensors than announced."""
    where: dict[str, str] = {}
    faults: list[Fault] = []
    for tensor in (tensor for part in parts for tensor in part.tensors):
        if tensor.name in where:
            faults.append(
                Fault(told, shorten(tensor.name), f"is in {where[tensor.name]} and in {tensor.file}; split it again")
            )
        where[tensor.name] = tensor.file
    announced = parts[0].metadata.get(TENSORS)
    if type(announced) is int and announced != len(where) and not faults:
        words = f"announces {announced:,} tensors, the parts hold {len(where):,}; download them again"
        faults.append(Fault(told, TENSORS, words))
    return faults[: MAX_FAULTS_TOLD + 1]
