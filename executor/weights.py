"""The tensors of a checkpoint, by fleet's tensor table: mapped from the file, or generated for the embedded model.

Values are in the checkpoint's own layout and types: float32, of a Hugging Face folder also fp16 (float16) and bf16 (its
bits as uint16). Nothing here decides what is staged; packing is a device's affair.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from executor.stored_weights import count_not_finite, map_stored
from fleet.checkpoints import seeded
from fleet.checkpoints.llama2c import V0_HEADER_BYTES, V1_HEADER_BYTES
from fleet.checkpoints.source import digest_file, open_regular, read_exactly, shown
from fleet.errors import DescriptionError
from fleet.model import Model, TensorSpec

__all__ = ["Weights", "open_weights"]

F32 = npt.NDArray[np.float32]
Array = npt.NDArray[Any]

_CHUNK_ELEMENTS = 1 << 20


class Weights:
    """The named tensors of one model, each a read-only, C-contiguous array of its table's shape."""

    def __init__(self, model: Model, tensors: Mapping[str, Array]) -> None:
        self.model = model
        self._tensors = tensors
        self._bad: dict[str, tuple[int, int]] | None = None

    def tensor(self, name: str) -> Array:
        """The tensor called `name`; KeyError when the table does not list it."""
        return self._tensors[name]

    def check(self) -> list[str]:
        """Warnings in words, one for each tensor that holds NaN or infinity, of those that a pass reads."""
        return [
            f"{name} holds {nan:,} NaN and {inf:,} infinite values: the tokens mean nothing"
            for name, (nan, inf) in self._not_finite().items()
        ]

    @property
    def holds_nan(self) -> bool:
        """Whether any value is NaN: only then can a word of the weights equal a poison, which is a NaN pattern."""
        return any(nan for nan, _ in self._not_finite().values())

    def _not_finite(self) -> dict[str, tuple[int, int]]:
        """Tensor -> (NaN, infinite values), where there are any; counted once."""
        if self._bad is None:
            self._bad = {}
            for spec in self._read():
                nan = inf = 0
                for chunk in _chunks(self._tensors[spec.name]):
                    found = count_not_finite(chunk)
                    nan, inf = nan + found[0], inf + found[1]
                if nan or inf:
                    self._bad[spec.name] = (nan, inf)
        return self._bad

    def contains_word(self, word: int) -> bool:
        """Whether any 32-bit word of a tensor that a pass reads equals `word` (a poison must not)."""
        wanted = np.uint32(word)
        return any(
            bool((chunk.view(np.uint32) == wanted).any())
            for spec in self._read()
            for chunk in _chunks(self._tensors[spec.name])
        )

    def _read(self) -> Iterator[TensorSpec]:
        return (spec for spec in self.model.tensors if spec.role != "unread")


def open_weights(model: Model) -> Weights:
    """The tensors of `model`: the file is mapped read-only, the embedded model is generated (the same bits everywhere).

    Raises DescriptionError when only a config is known, when the file is gone, or is no longer the file that was
    loaded. A file that shrinks while it is mapped cannot be guarded against: do not write to it during a run.
    """
    if model.format == "seeded":
        return Weights(model, generate(model))
    if model.recipe is not None and model.read is not None:
        return Weights(model, map_stored(model))
    if model.path is None or any(spec.offset is None for spec in model.tensors):
        raise DescriptionError.at(
            shown(model.path or model.name),
            "",
            "holds no weights that can be run, only a config; give a llama2.c checkpoint or a folder of safetensors",
        )
    return Weights(model, _map(model, model.path))


def _map(model: Model, path: str) -> dict[str, F32]:
    handle, size = open_regular(path)
    with handle:
        _check_unchanged(model, handle, size, path)
        words = np.memmap(handle, dtype=np.dtype("<f4"), mode="r", shape=(size // 4,))
    tensors = {}
    for spec in model.tensors:
        first = (spec.offset or 0) // 4
        # A copy is made on a big-endian machine only; elsewhere this is a view of the mapping.
        array = np.ascontiguousarray(words[first : first + spec.n_elements], dtype=np.float32).reshape(spec.shape)
        array.flags.writeable = False
        tensors[spec.name] = array
    return tensors


def _check_unchanged(model: Model, handle: BinaryIO, size: int, path: str) -> None:
    last = model.tensors[-1]
    expected = (last.offset or 0) + last.nbytes
    header_bytes = V0_HEADER_BYTES if model.format == "llama2c-v0" else V1_HEADER_BYTES
    header = read_exactly(handle, header_bytes, path)
    if size != expected or digest_file(handle, size, header, path) != model.digest:
        raise DescriptionError.at(
            shown(path),
            "",
            f"is not the file that was loaded: it changed ({size:,} bytes now, {expected:,} then); admit again",
        )


def generate(
    model: Model, seed: int = seeded.SEED, values: dict[str, tuple[float, float]] | None = None
) -> dict[str, F32]:
    """The embedded model's tensors. `seed` and `values` differ from the shipped ones only while a seed is searched.

    SplitMix64 (Steele, Lea, Flood 2014) over a counter, the top 24 bits as a number in [-1, 1), then one float32
    multiplication and one addition: integer arithmetic and two correctly rounded operations, hence no libm and the
    same bits with any NumPy on any machine.
    """
    scales = seeded.VALUES if values is None else values
    tensors = {}
    for ordinal, spec in enumerate(model.tensors):
        offset, scale = scales[spec.name]
        array = _uniform(_stream(seed, ordinal), spec.n_elements).reshape(spec.shape)
        array = np.float32(offset) + np.float32(scale) * array
        if spec.name == model.classifier_name:
            dimmed = np.ones(spec.shape[0], dtype=bool)
            dimmed[seeded.FIRST_PRINTABLE : seeded.LAST_PRINTABLE + 1] = False
            array[dimmed] *= np.float32(seeded.UNPRINTABLE_SCALE)
        array.flags.writeable = False
        tensors[spec.name] = array
    return tensors


_GAMMA = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def _stream(seed: int, ordinal: int) -> int:
    """The counter that tensor number `ordinal` starts from: far apart for neighbouring seeds and tensors."""
    start = np.array([(seed * _GAMMA + ordinal * 0xD1B54A32D192ED03) & _MASK], dtype=np.uint64)
    return int(_mix(start)[0])


def _mix(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's finalizer; products wrap modulo 2**64."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _uniform(start: int, count: int) -> F32:
    """`count` float32 in [-1, 1), multiples of 2**-23: every one exact."""
    counter = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GAMMA) + np.uint64(start)
    top = (_mix(counter) >> np.uint64(40)).astype(np.int64) - (1 << 23)
    return top.astype(np.float32) * np.float32(2.0**-23)


def _chunks(array: Array) -> Iterator[Array]:
    flat = array.reshape(-1)
    for first in range(0, flat.size, _CHUNK_ELEMENTS):
        yield flat[first : first + _CHUNK_ELEMENTS]
