"""Has compiled code at hand before it is timed, and says so where that takes a while."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import numba
import numpy as np

from executor.arena import NUMPY_DTYPES
from executor.jit import cache_note
from fleet.model import Model

Call = tuple[Callable[..., Any], tuple[Any, ...]]
"""A compiled function, and arguments of the types that it will be called with, on which it has little to do."""

_typeof: Any = numba.typeof


def make_calls_ready(calls: Iterable[Call], tell: Callable[[str], None] | None = None) -> None:
    """Load or compile each function for its arguments, by calling it. `tell` hears before and after, only where one of
    them has to be compiled.
    """
    missing = [(function, arguments) for function, arguments in calls if not _at_hand(function, arguments)]
    compiles = not all(is_kept(function, signature_of(function, arguments)) for function, arguments in missing)
    if compiles and tell is not None:
        tell("compiling the kernels, once ...")
    began = time.perf_counter()
    for function, arguments in missing:
        function(*arguments)
    if compiles and tell is not None:
        kept = "kept for the next run" if cache_note() is None else cache_note()
        tell(f"compiled the kernels in {time.perf_counter() - began:.1f} s; {kept}")


def signature_of(function: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The types that numba sees in a call: those of the arguments, and of what is left to a default."""
    given, fold = tuple(_typeof(argument) for argument in arguments), getattr(function, "fold_argument_types", None)
    return given if fold is None else tuple(fold(given, {})[1])


def _at_hand(function: Any, arguments: tuple[Any, ...]) -> bool:
    known = signature_of(function, arguments)
    return any(tuple(signature) == known for signature in function.signatures)


def is_kept(dispatcher: Any, signature: tuple[Any, ...]) -> bool:
    """Whether numba's cache on disk holds this variant, undamaged. False where that cannot be told.

    numba has no public question for it; what is asked here is what its own look-up asks.
    """
    cache = dispatcher._cache
    file, key_of = getattr(cache, "_cache_file", None), getattr(cache, "_index_key", None)
    if file is None or key_of is None:
        return False
    return file.load(key_of(signature, dispatcher.targetctx.codegen())) is not None


def kernel_calls(*, draws: bool = False, packed: bool = False) -> list[Call]:
    """The kernels that operations are dispatched to one by one, those for `packed` operands too, and, where it `draws`,
    those of `executor.sampling`.
    """
    from executor.kernels import KERNELS

    arguments = _kernel_arguments()
    calls: list[Call] = [(kernel, arguments[name]) for name, kernel in KERNELS.items()]
    if packed:
        from executor.packed import steps

        calls += [(steps.embed, (0,) * 6), (steps.multiply, (*(0,) * 10, None))]
        calls += [(steps.attend_one, (*(0,) * 10, None)), (steps.attend_many, (*(0,) * 11, None))]
    if draws:
        from executor.sampling import draw, first_largest

        row, order, state = np.zeros(2, np.float32), np.zeros(2, np.int32), np.ones(1, np.int64)
        calls += [(first_largest, (row,)), (draw, (row, order, np.ones(2, np.float32), state))]
    return calls


def stored_calls(model: Model, kv_dtype: str) -> list[Call]:
    """The kernels that read this checkpoint's own types beside those of `kernel_calls`; none for llama2.c's."""
    if model.recipe is None:
        return []
    from executor.stored_kernels import STORED, plain_type

    one, ids, row = np.zeros((1, 2), np.float32), np.zeros(1, np.int32), np.zeros((1, 1), np.float32)
    types = {name: plain_type(np.zeros((2, 2), NUMPY_DTYPES[name])) for name in sorted({kv_dtype, *_dtypes(model)})}
    calls: list[Call] = [
        (STORED["rope_half"], (one, one.copy(), row, row, 0, 2)),
        (STORED["rope_column"], (row, row.copy(), 0, 0, 0)),
    ]
    for name in sorted(_dtypes(model)):
        stored = types[name]
        calls += [(STORED["rmsnorm_eps"], (one, one, stored[0], 0)), (STORED["bias"], (one, stored[0]))]
        if name != "fp32":
            calls += [(STORED["embed"], (one, stored, ids)), (STORED["matmul"], (one, one.copy(), stored))]
    if kv_dtype != "fp32":
        cache = types[kv_dtype]
        calls += [(STORED["attention"], (one, one, cache, cache, row, 0, 1, 1, 2)), (STORED["store"], (cache[:1], one))]
    return calls


def _dtypes(model: Model) -> set[str]:
    return {spec.dtype for spec in model.tensors if spec.dtype in NUMPY_DTYPES}


def _kernel_arguments() -> dict[str, tuple[Any, ...]]:
    """By kernel: one token of one head of two, over one position."""
    one, two = np.zeros((1, 2), np.float32), np.zeros((1, 2), np.float32)
    square, row, angles = np.zeros((2, 2), np.float32), np.zeros(2, np.float32), np.zeros((1, 1), np.float32)
    ids = np.zeros(1, np.int32)
    return {
        "embed": (one, square, ids),
        "rmsnorm": (one, two, row),
        "matmul": (one, two, square),
        "rope": (one, two, angles, angles, 0, 2),
        "attention": (one, two, two, two, angles, 0, 1, 1, 2),
        "store": (one, two),
        "add": (one, two),
        "swiglu": (one, two),
        "argmax": (ids, row),
        "rope_table": (angles, angles.copy(), 2),
    }
