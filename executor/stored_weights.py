"""The tensors of a folder of safetensors with its config: mapped read-only, each in the type that the files give it.

Headers are read anew and must come to the digest of the model that was loaded: nothing is staged from other files.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt

from executor.arena import NUMPY_DTYPES
from fleet.checkpoints.folder import joined, stored_of
from fleet.checkpoints.hf_config import read_config_folder
from fleet.checkpoints.source import open_regular, shown
from fleet.checkpoints.stored import Stored, StoredTensor
from fleet.checkpoints.weight_files import inside
from fleet.errors import DescriptionError, Fault
from fleet.model import Model

__all__ = ["count_not_finite", "map_stored"]

Array = npt.NDArray[Any]
_DTYPES = {"F32": "fp32", "BF16": "bf16", "F16": "fp16"}


def map_stored(model: Model) -> dict[str, Array]:
    """Tensor -> its array, for every tensor of the model: f32, fp16 as float16, bf16 as uint16.

    Raises DescriptionError with all faults: files gone or changed since they were read, types that are not mapped. A
    file that shrinks while it is mapped cannot be guarded against: do not write to it during a run.
    """
    folder = os.path.dirname(os.path.abspath(model.path or "."))
    stored = stored_of(folder, sorted(os.listdir(folder)))
    if joined(read_config_folder(folder), stored).digest != model.digest:
        raise DescriptionError.at(
            shown(folder), "", "is not the checkpoint that was loaded: a file of it changed; admit again"
        )
    files = _open_all(folder, stored)
    held = {tensor.name: tensor for tensor in stored.tensors}
    faults = [
        Fault(shown(folder), spec.name, f"is {held[spec.name].dtype}; mapped are {', '.join(_DTYPES)}")
        for spec in model.tensors
        if held[spec.name].dtype not in _DTYPES
    ]
    if faults:
        raise DescriptionError(faults)
    return {spec.name: _array(files[held[spec.name].file], held[spec.name]) for spec in model.tensors}


def _open_all(folder: str, stored: Stored) -> dict[str, Array]:
    """The bytes of each file, mapped."""
    files: dict[str, Array] = {}
    for file in stored.files:
        path = inside(folder, file.name)
        if isinstance(path, Fault):
            raise DescriptionError(path)
        handle, size = open_regular(path)
        with handle:
            if size != file.size:
                raise DescriptionError.at(shown(path), "", "changed its size while it was read; admit again")
            files[file.name] = np.memmap(handle, dtype=np.uint8, mode="r", shape=(size,))
    return files


def _array(data: Array, tensor: StoredTensor) -> Array:
    dtype = NUMPY_DTYPES[_DTYPES[tensor.dtype]].newbyteorder("<")
    assert tensor.offset is not None
    assert tensor.nbytes is not None
    raw = data[tensor.offset : tensor.offset + tensor.nbytes]
    if raw.ctypes.data % dtype.itemsize:
        raw = raw.copy()  # a header of an odd length shifts all that follows
    array = np.ascontiguousarray(raw.view(dtype), dtype=dtype.newbyteorder("=")).reshape(tensor.shape)
    array.flags.writeable = False
    return array


def count_not_finite(chunk: Array) -> tuple[int, int]:
    """(NaN, infinite values) of stored elements; uint16 are bf16."""
    if chunk.dtype == np.uint16:
        low = chunk & 0x7FFF
        return int((low > 0x7F80).sum()), int((low == 0x7F80).sum())
    return int(np.isnan(chunk).sum()), int(np.isinf(chunk).sum())
