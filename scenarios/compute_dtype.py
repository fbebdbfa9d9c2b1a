"""Runs whose cards read weights in bf16 or fp16: what may be asked for, and the words for what is then not promised."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fleet.errors import DescriptionError
from planner.orders import Orders

__all__ = [
    "COMPUTE_DTYPES", "check_compute_devices", "check_compute_dtype", "narrow_disagrees", "narrow_of", "narrow_words",
    "not_promised",
]  # fmt: skip

COMPUTE_DTYPES = ("fp32", "bf16", "fp16")
_FLAG = "--compute-dtype"


def check_compute_dtype(dtype: str, backend: str, fast: bool) -> None:
    """DescriptionError for a type that nobody computes in, or not this backend, or not fast."""
    if dtype not in COMPUTE_DTYPES:
        raise DescriptionError.at("command line", _FLAG, f"{dtype!r} is unknown; use {', '.join(COMPUTE_DTYPES)}")
    if dtype == "fp32":
        return
    if backend != "cupy":
        told = f"{dtype}: backend {backend} computes in fp32; use --backend cupy, or leave {_FLAG} out"
        raise DescriptionError.at("command line", _FLAG, told)
    if fast:
        raise DescriptionError.at("command line", _FLAG, f"{dtype} and --fast exclude each other; leave one out")


def check_compute_devices(dtype: str, orders: Orders) -> None:
    """DescriptionError where no card takes part that could have narrow weights."""
    if dtype != "fp32" and all(device.kind != "gpu" for device in orders.devices):
        told = f"{dtype}: no GPU takes part in this plan, and processors compute in fp32; leave {_FLAG} out"
        raise DescriptionError.at("run", "compute-dtype", told)


def narrow_of(settings: Mapping[str, Any] | None) -> str | None:
    """The narrow type of a run's settings; None where it computed in fp32."""
    dtype = (settings or {}).get("compute_dtype")
    return None if dtype in (None, "fp32") else str(dtype)


def narrow_disagrees(run: Mapping[str, Any]) -> Iterator[str]:
    """What a run that says it computed in a narrow type contradicts: else the claim alone would waive its ids."""
    dtype = narrow_of(run.get("settings"))
    driver = run.get("driver")
    driven = driver.get("compute_dtype") if isinstance(driver, Mapping) else None
    if driven != dtype:
        yield f"settings.compute_dtype is {dtype or 'fp32'}, but its driver read weights in {driven or 'fp32'}"
    if dtype is not None and (run.get("backend"), run.get("path")) != ("cupy", "fused"):
        yield f"settings.compute_dtype is {dtype}, but {run.get('backend')} by path {run.get('path')} computes in fp32"


def not_promised(dtype: str, seen: str) -> str:
    """Why a check of ids is waived, and what the ids were."""
    return f"computed in {dtype}: ids are reported, not promised; {seen}"


def narrow_words(dtype: str) -> str:
    """The limit that such a run states."""
    return (
        f"compute-dtype {dtype}: on cards weight matrices, and in prefill what they are multiplied with, are {dtype};"
        " sums, K, V, attention and processors' work are fp32. The edges carry the checkpoint's fp32, and each weight"
        " is narrowed in its own memory: no byte of the plan changes. Ids are reported, not promised."
    )
