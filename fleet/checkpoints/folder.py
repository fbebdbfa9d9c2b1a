"""A model as it is downloaded: a folder with a config, weight files, or both; and weight files given by themselves.

Where both are there the bytes are read and set beside what the config computes. Sizes that the files contradict are
not believed: such a model is unknown, with both figures in words. Weights in pickles are never opened.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from typing import BinaryIO

from fleet.checkpoints.agree import Agreement, compare, some
from fleet.checkpoints.safetensors_header import read_safetensors
from fleet.checkpoints.safetensors_index import INDEX_NAME, SINGLE_NAME, part_of, read_parts, read_sharded
from fleet.checkpoints.source import model_name, open_regular, shown
from fleet.checkpoints.stored import Stored, StoredTensor
from fleet.checkpoints.stored_model import read_weights, role_of, specs, unpriced
from fleet.checkpoints.weight_files import MAX_FILES, inside
from fleet.errors import DescriptionError, Fault
from fleet.model import PRICED_DTYPES, Model, TensorSpec

_MAX_ENTRIES = 1 << 16
_OF_WEIGHTS = ("weights: ", "the weights are ", "weights of type ")
_WHOLE = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_UNKNOWN = "unknown family: bytes read, KV unknown; give the folder with its config.json"


def read_folder(folder: str, name: str | None = None) -> Model:
    """The model of a folder, called `name` or as the folder. Raises DescriptionError with every fault found."""
    names = _listing(folder)
    config, adapter = "config.json" in names, "adapter_config.json" in names
    weights = [entry for entry in names if entry.endswith(".safetensors") or entry == INDEX_NAME]
    gguf = [entry for entry in names if entry.endswith(".gguf")]
    if not config and not adapter and "model_index.json" not in names:
        if weights:
            stored = stored_of(folder, names)
            return _without_config(stored, folder, name or _folder_name(folder))
        if gguf:
            return _only_gguf(folder, gguf)
    from fleet.checkpoints.hf_config import read_config_folder

    _check_links(folder, names)
    model = read_config_folder(folder)
    if name is not None:
        model = replace(model, name=name)
    if not weights:
        return _without_weights(model, names)
    return joined(model, stored_of(folder, names))


def read_safetensors_given(handle: BinaryIO, size: int, path: str) -> Model:
    """The model of a safetensors file that was named itself; a config.json beside a whole model is read with it."""
    folder, base = os.path.split(os.path.abspath(path))
    part = part_of(base)
    if part is None and base == SINGLE_NAME and os.path.exists(os.path.join(folder, "config.json")):
        return read_folder(folder)
    stored = read_safetensors(handle, size, path)
    model = _without_config(stored, path, model_name(path))
    if part is not None and part[2] > 1:
        words = f"this is part {part[1]} of {part[2]}: give the folder of all parts"
        return replace(model, unknown=(words, *model.unknown))
    return model


def read_index_given(path: str) -> Model:
    """The model of an index file that was named itself, with the config.json beside it when there is one."""
    folder, base = os.path.split(os.path.abspath(path))
    stored = read_sharded(folder, base)
    if not os.path.exists(os.path.join(folder, "config.json")):
        return _without_config(stored, path, _folder_name(folder))
    from fleet.checkpoints.hf_config import read_config_folder

    return joined(read_config_folder(folder), stored)


def stored_of(folder: str, names: list[str]) -> Stored:
    """The tensors of a folder's safetensors: one file, the files of its index, or a complete set of parts."""
    if SINGLE_NAME in names:
        stored = read_parts(folder, [SINGLE_NAME])
        if INDEX_NAME in names:
            words = f"{SINGLE_NAME} and {INDEX_NAME} are both there: the first is read, as the library does"
            return replace(stored, warnings=(*stored.warnings, words))
        return stored
    if INDEX_NAME in names:
        return read_sharded(folder, INDEX_NAME)
    files = [name for name in names if name.endswith(".safetensors")]
    parts = {name: part for name in files if (part := part_of(name)) is not None}
    sets = {(part[0], part[2]) for part in parts.values()}
    if len(parts) == len(files) and len(sets) == 1:
        (stem, count), *_ = sets
        return read_parts(
            folder, [f"{stem}-{n:05}-of-{count:05}.safetensors" for n in range(1, min(count, MAX_FILES) + 1)]
        )
    if len(files) == 1:
        return read_parts(folder, files)
    raise DescriptionError.at(
        shown(folder),
        "",
        f"has {len(files):,} safetensors files and no {INDEX_NAME} that says which belong together: "
        f"{some([shown(name) for name in files])}; download the index, or give one file",
    )


def joined(model: Model, stored: Stored) -> Model:
    """`model` with the bytes of its files; unknown where they contradict the sizes that the config gives."""
    digest = hashlib.sha256(f"{model.digest} {stored.digest}".encode()).hexdigest()
    base = replace(model, digest=digest, warnings=(*model.warnings, *stored.warnings))
    if not stored.tensors:
        raise DescriptionError.at(
            shown(model.path or model.name), "", "its weight files hold no tensor; download them again"
        )
    # What was said of computed weights does not hold for weights that were read.
    base = replace(base, unknown=tuple(words for words in model.unknown if not words.startswith(_OF_WEIGHTS)))
    if not model.tensors:
        return replace(base, tensors=specs(stored), weights_compared=True, read=read_weights(stored))
    found = compare((*model.tensors, *model.mtp_tensors) if model.mtp_tensors else model.tensors, stored)
    found = _without_absent_mtp(found, model)
    words = found.words()
    read = read_weights(stored, words)
    if not found.same_layout:
        told = tuple(f"config and files disagree: {word}" for word in words)
        # Caches follow the config's sizes, which are wrong; the shapes that count parameters may be packed.
        base = replace(base, layers=(), mtp_layers=(), counted_parameters=0, unknown=(*base.unknown, *told))
        return replace(base, tensors=specs(stored), weights_compared=True, read=read)
    table = _read_table(model, stored, found)
    dtypes = {spec.dtype for spec in table}
    dtype = dtypes.pop() if found.types and len(dtypes) == 1 and dtypes <= set(PRICED_DTYPES) else model.weights_dtype
    return replace(
        base, tensors=table, weights_dtype=dtype, weights_compared=True, read=read, warnings=(*base.warnings, *words)
    )


def _without_absent_mtp(found: Agreement, model: Model) -> Agreement:
    """Checkpoints are published with and without their multi-token-prediction layers: none of them need be there."""
    optional = {name for spec in model.mtp_tensors for name in spec.names()}
    if not optional or not optional <= set(found.missing):
        return found
    return replace(
        found,
        missing=tuple(name for name in found.missing if name not in optional),
        computed_bytes=sum(spec.nbytes for spec in model.tensors),
    )


def _read_table(model: Model, stored: Stored, found: Agreement) -> tuple[TensorSpec, ...]:
    """The computed table where the files have its very bytes; else the files' own lines, with the computed roles.

    Left out are a classifier that is tied to the embedding but stored all the same, buffers, and the layers of
    multi-token prediction, which are an option. All else that the config does not compute counts.
    """
    optional = {name for spec in model.mtp_tensors for name in spec.names()}
    beyond = set(found.extra)
    extra = [t for t in stored.tensors if t.name in beyond and not _is_spare(t, model)]
    if not found.types and not found.renamed:
        return (*model.tensors, *_lines(extra, stored))
    wanted = [t for t in stored.tensors if t.name not in optional and not _is_spare(t, model)]
    return _lines(wanted, stored)


def _lines(tensors: list[StoredTensor], stored: Stored) -> tuple[TensorSpec, ...]:
    return specs(replace(stored, tensors=tuple(tensors)))


def _is_spare(tensor: StoredTensor, model: Model) -> bool:
    role = role_of(tensor.name)
    return role == "buffer" or (role == "classifier" and model.shared_classifier)


def _without_config(stored: Stored, path: str, name: str) -> Model:
    if not stored.tensors:
        raise DescriptionError.at(shown(path), "", "holds no tensor: no model; download it again")
    model = unpriced(name, "unknown", "safetensors", path, stored)
    # Whole numbers may hold several parameters each: without a config nobody says how many.
    packed = any(tensor.dtype not in _WHOLE for tensor in stored.tensors)
    return replace(
        model,
        tensors=specs(stored),
        counted_parameters=0 if packed else None,
        quantisation=", ".join(stored.by_dtype()),
        unknown=(_UNKNOWN,),
        warnings=stored.warnings,
    )


def _without_weights(model: Model, names: list[str]) -> Model:
    pickles = [name for name in names if name.endswith(_PICKLES)]
    if not pickles:
        return model
    words = f"the weights are pickles ({some([shown(name) for name in pickles], 2)}): never opened; bytes are computed"
    return replace(model, warnings=(*model.warnings, words))


def _only_gguf(folder: str, names: list[str]) -> Model:
    first = [name for name in names if (part := part_of(name)) is None or part[1] == 1]
    if len(first) != 1:
        raise DescriptionError.at(
            shown(folder),
            "",
            f"has {len(names):,} GGUF files: {some([shown(name) for name in names])}; give one of them",
        )
    path = inside(folder, first[0])
    if isinstance(path, Fault):
        raise DescriptionError(path)
    from fleet.checkpoints.gguf_split import read_gguf_given

    given = os.path.join(folder, first[0])
    handle, size = open_regular(path)
    with handle:
        return read_gguf_given(handle, size, given)


def _check_links(folder: str, names: list[str]) -> None:
    """Configs of a folder are opened by name elsewhere: none may be a link out of it."""
    wanted = [name for name in ("config.json", "hf_quant_config.json") if name in names]
    faults = [found for name in wanted if isinstance(found := inside(folder, name), Fault)]
    if faults:
        raise DescriptionError(faults)


def _listing(folder: str) -> list[str]:
    """The names in a folder, sorted; raises DescriptionError when it cannot be listed or is no model's folder."""
    names: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                names.append(entry.name)
                if len(names) > _MAX_ENTRIES:
                    raise DescriptionError.at(
                        shown(folder), "", f"has more than {_MAX_ENTRIES:,} files: no model's folder"
                    )
    except OSError as error:
        raise DescriptionError.at(
            shown(folder), "", f"cannot be listed: {error.strerror}; check its permissions"
        ) from None
    return sorted(names)


def _folder_name(folder: str) -> str:
    return shown(os.path.basename(os.path.abspath(folder)))
