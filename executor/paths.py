"""Which path a request takes, and at what pace: each phase as one compiled call, or operation by operation."""

from __future__ import annotations

from typing import Literal

from executor.device import Backend
from executor.packed.layout import LAYOUT
from fleet.errors import DescriptionError
from planner.orders import Orders

__all__ = ["MAX_THREADS", "PATHS", "Path", "check_pace", "chosen_path", "is_llama2c", "narrow_setting"]

MAX_THREADS = 256
Path = Literal["fused", "dispatch"]
PATHS: tuple[Path, ...] = ("fused", "dispatch")


def is_llama2c(orders: Orders) -> bool:
    """Whether the tensors that the orders place are llama2.c's own."""
    return any(buffer.name == "weights/wq" for arena in orders.arenas for buffer in arena.buffers)


def chosen_path(orders: Orders, backend: type[Backend], asked: Path | None) -> Path:
    """The path that a request takes. Fused only where it exists: attention on the device, a backend that runs it.

    DescriptionError where the layout leaves no path: a backend that works on packed buffers in neither way.
    """
    exists = orders.workload.attention == "device" and backend.runs_fused and is_llama2c(orders)
    if asked == "fused" and not is_llama2c(orders):
        told = "fused runs llama2.c's own tensors only; this checkpoint runs operation by operation; leave --path out"
        raise DescriptionError.at("run", "path", told)
    path: Path = (asked or "fused") if exists else "dispatch"
    if path == "dispatch" and orders.workload.layout == LAYOUT and not backend.runs_packed:
        told = f"backend {backend.name} computes in the layout plain only; admit with --layout plain"
        raise DescriptionError.at("run", "layout", told)
    if path == "dispatch" and (narrow := narrow_setting(backend)):
        told = f"{narrow['compute_dtype']}: operations one by one are computed in fp32; leave --path out, and"
        raise DescriptionError.at("run", "compute-dtype", f"{told} attention on the device")
    return path


def check_pace(orders: Orders, path: Path, fast: bool, threads: int) -> None:
    """DescriptionError where a request cannot be run fast or by several threads: only compiled calls can, and fast only
    packed ones.
    """
    if fast and orders.workload.layout != LAYOUT:
        raise DescriptionError.at("run", "fast", f"needs the layout {LAYOUT}; admit with --layout {LAYOUT}")
    if fast and path != "fused":
        told = "operations one by one have no fast mode; leave --path out"
        raise DescriptionError.at("run", "fast", told)
    if threads != 1 and path != "fused":
        told = "operations one by one are not shared out; leave --threads out"
        if is_llama2c(orders):
            told += ", or leave --path out, with attention on the device"
        raise DescriptionError.at("run", "threads", told)
    if not 1 <= threads <= MAX_THREADS:
        raise DescriptionError.at("run", "threads", f"{threads} threads; use 1 to {MAX_THREADS}")


def narrow_setting(backend: Backend | type[Backend]) -> dict[str, str]:
    """The type in which a backend's own devices read weights, where it is not fp32."""
    dtype: str = getattr(backend, "compute_dtype", "fp32")
    return {} if dtype == "fp32" else {"compute_dtype": dtype}
