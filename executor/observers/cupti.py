"""The driver's own witness: every copy that CUDA made, read from CUPTI's activity records through ctypes.

It knows kinds, bytes, devices and times of copies, and the number that was pushed around the call (external
correlation). What was ordered, predicted or counted it does not know. A copy made by a kernel is no copy to it, nor is
what another process or a network card does. Records that were lost, or not finished, are errors and never left out.

The library comes with the CUDA toolkit or as `nvidia-cuda-cupti`; it is looked for, never shipped. Layout of the
records: the headers of CUPTI 12.9, 13.0 and 13.5, whose first fields agree.
"""

from __future__ import annotations

import contextlib
import ctypes as C  # noqa: N812 - as NVIDIA's own examples name it
import glob
import os
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from fleet.errors import BackendError

__all__ = ["LOOK", "CopyRecord", "CuptiUnavailableError", "DriverTrace", "TraceReport", "driver_trace", "find_library"]

_MEMCPY, _MEMSET, _DRIVER, _RUNTIME, _MEMCPY2, _EXTERNAL = 1, 2, 4, 5, 22, 39
_PREFIX = {_MEMCPY: 48, _MEMSET: 36, _MEMCPY2: 64, _EXTERNAL: 20, _RUNTIME: 36}
_COPY_KINDS = {1: "h2d", 2: "d2h", 8: "d2d", 9: "h2h", 10: "p2p"}
_MEMORY_KINDS = {0: "unknown", 1: "pageable", 2: "pinned", 3: "device", 4: "array", 5: "managed"}
_PEER_CALLS = (160, 161)
"""cudaMemcpyPeer and cudaMemcpyPeerAsync in cupti_runtime_cbid.h."""
LOOK = int.from_bytes(b"kvwlook", "big")
"""The tag of what this project's own witnesses copy when they look: told apart, and no leg's."""
_CUSTOM = 3
_FORCED = 1
_BUFFER_BYTES = 4 << 20


class CuptiUnavailableError(Exception):
    """Why there is no driver witness, in one sentence."""


@dataclass(frozen=True, slots=True)
class CopyRecord:
    """One copy as the driver recorded it. `src` and `dst` are CUDA ordinals, None for the host.

    `tag` is the number that was pushed around the call, None when there was none; `peer_call`: it was made by the peer
    entry point, whatever its kind came out as. Times are the driver's nanoseconds.
    """

    tag: int | None
    kind: str
    nbytes: int
    src: int | None
    dst: int | None
    src_memory: str
    dst_memory: str
    start_ns: int
    end_ns: int
    peer_call: bool = False


@dataclass(kw_only=True, slots=True)
class TraceReport:
    """What was seen between `begin` and `end`. `memsets` are (count, bytes), never part of an edge."""

    records: list[CopyRecord] = field(default_factory=list)
    memsets: tuple[int, int] = (0, 0)
    witness: str = "cupti"


class DriverTrace:
    """CUPTI's activity records. One a process: the library has one set of callbacks.

    `begin` forgets what was seen, `end` gives it; every device must be synchronised before both. Raises
    CuptiUnavailableError when another profiler holds the library.
    """

    def __init__(self, path: str, *, driver_api: bool = False) -> None:
        try:
            self._lib = C.CDLL(path)
        except OSError as error:
            raise CuptiUnavailableError(f"CUPTI cannot be loaded ({error})") from error
        self._live: dict[int, Any] = {}
        self._forget()
        self._declare()
        self._register(driver_api)
        version = C.c_uint32()
        self._lib.cuptiGetVersion(C.byref(version))
        self.name = f"cupti {version.value}"

    def _declare(self) -> None:
        pointer, lib = C.POINTER, self._lib
        give = C.CFUNCTYPE(None, pointer(C.c_void_p), pointer(C.c_size_t), pointer(C.c_size_t))
        take = C.CFUNCTYPE(None, C.c_void_p, C.c_uint32, C.c_void_p, C.c_size_t, C.c_size_t)
        self._callbacks = (give(self._give), take(self._take))  # CUPTI keeps their addresses
        lib.cuptiActivityGetNextRecord.argtypes = [C.c_void_p, C.c_size_t, pointer(C.c_void_p)]
        lib.cuptiActivityPushExternalCorrelationId.argtypes = [C.c_int, C.c_uint64]
        lib.cuptiActivityPopExternalCorrelationId.argtypes = [C.c_int, pointer(C.c_uint64)]
        lib.cuptiActivityGetNumDroppedRecords.argtypes = [C.c_void_p, C.c_uint32, pointer(C.c_size_t)]
        self._popped = C.c_uint64()

    def _register(self, driver_api: bool) -> None:
        status = self._lib.cuptiActivityRegisterCallbacks(*self._callbacks)
        kinds = (_MEMCPY, _MEMCPY2, _MEMSET, _RUNTIME, _EXTERNAL, *((_DRIVER,) if driver_api else ()))
        for kind in kinds:
            status = status or self._lib.cuptiActivityEnable(kind)
        if status:
            raise CuptiUnavailableError(
                f"CUPTI answered error {status}: another profiler holds it, or this user may not use it"
            )

    def _forget(self) -> None:
        self._raw: list[tuple[Any, ...]] = []
        self._tags: dict[int, int] = {}
        self._peer_calls: set[int] = set()
        self._memsets, self._memset_bytes, self._lost = 0, 0, 0
        self._broken: str | None = None

    # Called by CUPTI

    def _give(self, buffer: Any, size: Any, limit: Any) -> None:
        raw = C.create_string_buffer(_BUFFER_BYTES + 8)
        at = (C.addressof(raw) + 7) & ~7
        self._live[at] = raw
        buffer[0], size[0], limit[0] = at, _BUFFER_BYTES, 0

    def _take(self, context: Any, stream: int, buffer: int, size: int, valid: int) -> None:
        try:
            record = C.c_void_p()
            while valid and self._lib.cuptiActivityGetNextRecord(buffer, valid, C.byref(record)) == 0:
                assert record.value is not None
                self._read(record.value)
            dropped = C.c_size_t()
            if self._lib.cuptiActivityGetNumDroppedRecords(context, stream, C.byref(dropped)) == 0:
                self._lost += dropped.value
        except (struct.error, AssertionError) as error:  # nothing may leave a callback; `end` tells it
            self._broken = f"a record could not be read: {error}"
        finally:
            self._live.pop(buffer, None)

    def _read(self, at: int) -> None:
        kind = C.c_uint32.from_address(at).value
        if kind not in _PREFIX:
            return
        raw = C.string_at(at, _PREFIX[kind])
        if kind in (_MEMCPY, _MEMCPY2):
            copy, src, dst, _, nbytes, start, end, device, _, _, *rest = struct.unpack_from(
                "<4B3Q3I" + ("I" if kind == _MEMCPY else "5I"), raw, 4
            )
            ends = (device, device) if kind == _MEMCPY else (rest[0], rest[2])
            self._raw.append((copy, src, dst, nbytes, start, end, *ends, rest[-1]))
        elif kind == _EXTERNAL:
            _, tag, correlation = struct.unpack_from("<IQI", raw, 4)
            self._tags[correlation] = tag
        elif kind == _RUNTIME:
            if struct.unpack_from("<I", raw, 4)[0] in _PEER_CALLS:
                self._peer_calls.add(struct.unpack_from("<I", raw, 32)[0])
        else:
            self._memsets += 1
            self._memset_bytes += struct.unpack_from("<Q", raw, 8)[0]

    # Called by the executor

    def begin(self) -> None:
        """Forget everything up to now. Synchronise every device first."""
        self._flush()
        self._forget()

    @contextlib.contextmanager
    def tag(self, number: int) -> Iterator[None]:
        """What this thread calls inside carries `number`."""
        if self._lib.cuptiActivityPushExternalCorrelationId(_CUSTOM, number):
            raise BackendError("CUPTI takes no tags any more; the run cannot be witnessed")
        try:
            yield
        finally:
            self._lib.cuptiActivityPopExternalCorrelationId(_CUSTOM, C.byref(self._popped))

    def end(self) -> TraceReport:
        """Everything since `begin`. BackendError when records were lost, unfinished or unreadable."""
        self._flush()
        if self._lost:
            raise BackendError(f"the driver lost {self._lost:,} records: what it saw is not everything; run it again")
        if self._broken:
            raise BackendError(f"the driver's trace cannot be trusted: {self._broken}")
        if unfinished := sum(1 for raw in self._raw if raw[5] == 0):
            raise BackendError(f"{unfinished:,} copies were not finished when the trace was read: synchronise first")
        records = [self._record(*raw) for raw in self._raw]
        return TraceReport(records=records, memsets=(self._memsets, self._memset_bytes), witness=self.name)

    def _flush(self) -> None:
        if status := self._lib.cuptiActivityFlushAll(_FORCED):
            raise BackendError(f"CUPTI could not hand its records over (error {status})")

    def _record(
        self, copy: int, src: int, dst: int, nbytes: int, start: int, end: int, src_at: int, dst_at: int, number: int
    ) -> CopyRecord:
        kind = _COPY_KINDS.get(copy, f"kind {copy}")
        return CopyRecord(
            tag=self._tags.get(number), kind=kind, nbytes=nbytes, src=None if kind in ("h2d", "h2h") else src_at,
            dst=None if kind in ("d2h", "h2h") else dst_at, src_memory=_MEMORY_KINDS.get(src, str(src)),
            dst_memory=_MEMORY_KINDS.get(dst, str(dst)), start_ns=start, end_ns=end,
            peer_call=number in self._peer_calls,
        )  # fmt: skip


_ENVIRONMENT = "KVWAYBILL_CUPTI"
HELD = "KVWAYBILL_WITNESS"
"""Set in a process that is traced from outside: CUPTI has one set of callbacks."""
_ONE: list[DriverTrace] = []
OUTER: list[DriverTrace] = []
"""The trace that looks at this process from outside (`kvwaybill witness`), for tags of looks alone."""


def find_library() -> str | None:
    """Where CUPTI is: KVWAYBILL_CUPTI, beside the installed packages, in a toolkit, or where the loader looks."""
    if given := os.environ.get(_ENVIRONMENT):
        return given
    found = [path for folder in sys.path for path in glob.glob(os.path.join(folder, "nvidia", "*", "lib", _FILES))]
    for root in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"):
        if root:
            found += glob.glob(os.path.join(root, "extras", "CUPTI", "lib64", _FILES))
            found += glob.glob(os.path.join(root, "lib64", _FILES))
    if found:
        return found[0]
    for name in ("libcupti.so.13", "libcupti.so.12", "libcupti.so"):
        with contextlib.suppress(OSError):
            C.CDLL(name)
            return name
    return None


_FILES = "libcupti.so.1?"


def driver_trace() -> DriverTrace:
    """The trace of this process, made on first use. CuptiUnavailableError when there is none."""
    if os.environ.get(HELD):
        raise CuptiUnavailableError(
            "kvwaybill witness looks at this process already; there is one driver witness a process"
        )
    if not _ONE:
        path = find_library()
        if path is None:
            raise CuptiUnavailableError("CUPTI is not installed; nvidia-cuda-cupti makes the driver a witness")
        _ONE.append(DriverTrace(path))
    return _ONE[0]
