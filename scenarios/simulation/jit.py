"""How the kernels of the event loop are compiled: the inner ones as parts of one, which alone is kept on disk.

Nothing but the loop is called from Python, so the others need no way in from there. Among each other they hand on the
address of `Config` and `State` (`by_address`): handed on by value, seventy arrays are five hundred words a call, which
was half of the time that the loop took, and most of the time that it took to compile.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from numba import extending
from numba.core import cgutils as _cgutils
from numba.core import datamodel, types
from numba.core.imputils import lower_getattr_generic as _lower_getattr_generic
from numba.core.typing.templates import AttributeTemplate

from executor.jit import compiled as _kept

KERNELS = ("blocks", "columns", "handoffs", "jit", "loop", "queues", "series", "steps", "stretch", "windows")
"""Files of this folder that are compiled, or decide how."""

F = TypeVar("F", bound=Callable[..., Any])

# numba's stubs know less of these than they take.
cgutils: Any = _cgutils
lower_getattr_generic: Callable[[Any], Callable[[F], F]] = _lower_getattr_generic
intrinsic: Callable[[Callable[..., Any]], Any] = extending.intrinsic
config: Any = numba.config


def inner(function: F) -> F:
    """A kernel that only other kernels call."""
    njit: Any = numba.njit  # its stubs know less than it takes
    kernel = njit(cache=False, error_model="numpy", nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)(
        function
    )
    return cast(F, kernel)


def outer(function: F) -> F:
    """The kernel that Python calls. Kept on disk until a file of `KERNELS` changes, not only its own."""
    kernel: Any = _kept(function)
    kept: Any = getattr(getattr(kernel, "_cache", None), "_cache_file", None)
    if hasattr(kept, "_source_stamp"):
        kept._source_stamp = (kept._source_stamp, _stamp())
    return cast(F, kernel)


def _stamp() -> tuple[tuple[str, int, int], ...]:
    folder = os.path.dirname(os.path.abspath(__file__))
    seen = [(name, os.stat(os.path.join(folder, f"{name}.py"))) for name in KERNELS]
    return tuple((name, stat.st_mtime_ns, stat.st_size) for name, stat in seen)


class Address(types.Type):
    """The address of a named tuple `of` arrays and numbers, whose fields are read through it."""

    def __init__(self, of: Any) -> None:
        self.of = of
        super().__init__(name=f"Address({of.name})")


@extending.register_model(Address)
class _AddressModel(datamodel.models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        pointer = manager.lookup(kind.of).get_value_type().as_pointer()
        super().__init__(manager, kind, pointer)  # type: ignore[no-untyped-call]  # numba's models have no hints


@extending.infer_getattr
class _Fields(AttributeTemplate):
    key = Address

    def generic_resolve(self, kind: Any, name: str) -> Any:  # type: ignore[override]  # its stub says what an abstract one returns
        return kind.of.types[kind.of.fields.index(name)] if name in kind.of.fields else None


@lower_getattr_generic(Address)
def _field(context: Any, builder: Any, kind: Any, address: Any, name: str) -> Any:
    """What an address leads to owns nothing, so that nobody counts references."""
    return builder.load(cgutils.gep_inbounds(builder, address, 0, kind.of.fields.index(name)))


@intrinsic
def _by_address(_typing: Any, value: Any) -> Any:
    """The address of a named tuple, good until the kernel that asks for it returns.

    The caller of that kernel keeps the arrays alive; what is read through the address does not.
    """

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        place = cgutils.alloca_once(builder, arguments[0].type)
        for index, kind in enumerate(value.types):
            item = builder.extract_value(arguments[0], index)
            if isinstance(kind, types.Array):
                array = context.make_array(kind)(context, builder, value=item)
                array.meminfo = cgutils.get_null_value(array.meminfo.type)
                array.parent = cgutils.get_null_value(array.parent.type)
                item = array._getvalue()
            builder.store(item, cgutils.gep_inbounds(builder, place, 0, index))
        return place

    return Address(value)(value), generate


def _itself(value: Any) -> Any:
    """Without compilation (NUMBA_DISABLE_JIT) names lead to the fields."""
    return value


by_address: Callable[[Any], Any] = _itself if config.DISABLE_JIT else _by_address
