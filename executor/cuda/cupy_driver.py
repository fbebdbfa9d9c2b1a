"""The driver through CuPy's bindings of the CUDA runtime, and libcuda for launches. Imported only where it is used.

None of CuPy's arrays, pools, streams or its shared cuBLAS handle are used: each would have a current device of its own.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from executor.cuda.driver import Card, CopyDirection, DriverError, FaultKind
from executor.cuda.kernels import parameters_of

__all__ = ["CupyDriver", "make_driver"]

_TF32 = "NVIDIA_TF32_OVERRIDE"
_KINDS: dict[int, FaultKind] = {2: "memory", 35: "too old", 100: "no device", 101: "no device", 3: "no device"}
_KINDS |= dict.fromkeys((217, 705, 711), "peer")
_KINDS |= dict.fromkeys((46, 214, 220, 221, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 999), "lost")
_DIRECTIONS = {"h2d": 1, "d2h": 2, "d2d": 3}
_ALREADY_ENABLED = 704
_NON_BLOCKING = 1
_NO_TIMING = 2
_CTYPES = {"p": ctypes.c_uint64, "i": ctypes.c_int32, "q": ctypes.c_int64}
_LIBRARY_TYPES = {"fp32": 0, "fp16": 2, "bf16": 14}
"""cudaDataType of library_types.h."""
_COMPUTE_32F = 68
_BLAS_NO_MEMORY = 3
"""CUBLAS_STATUS_ALLOC_FAILED."""
_HOW_TO = "install kvwaybill[cuda13] (driver 580 or newer) or kvwaybill[cuda12]"


def make_driver() -> CupyDriver:
    """The real driver. DriverError ("library") when cupy or libcuda is not here, in one sentence."""
    return CupyDriver()


class CupyDriver:
    """See `executor.cuda.driver.Driver`. One an executor; it holds no device state but what it was asked to make."""

    def __init__(self) -> None:
        set_before = os.environ.get(_TF32)
        os.environ.setdefault(_TF32, "0")  # read when the first CUDA library loads
        self._tf32 = {"NVIDIA_TF32_OVERRIDE": os.environ[_TF32], "set_by": "user" if set_before else "kvwaybill"}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of a missing toolkit, or of two CuPys: `count` tells what is wrong
                import cupy
                from cupy.cuda import runtime
        except (ImportError, OSError) as error:
            raise DriverError("library", f"cupy cannot be loaded ({error}); {_HOW_TO}") from error
        self._cupy, self._runtime = cupy, runtime
        self._error = runtime.CUDARuntimeError
        self._nvml = _Nvml()
        try:
            self._cuda = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise DriverError("no device", "this machine has no NVIDIA driver (libcuda.so.1)") from error

    def _do(self, call: Callable[..., Any], *args: Any) -> Any:
        try:
            return call(*args)
        except self._error as error:
            raise DriverError(_KINDS.get(error.status, "other"), str(error)) from error

    def _check(self, status: int, what: str) -> None:
        if status:
            raise DriverError(_KINDS.get(status, "other"), f"{what} answered CUDA error {status}")

    # Devices

    def count(self) -> int:
        """See the protocol."""
        return int(self._do(self._runtime.getDeviceCount))

    def card(self, ordinal: int) -> Card:
        """See the protocol."""
        known = self._do(self._runtime.getDeviceProperties, ordinal)
        name = known["name"].decode(errors="replace")
        return Card(
            ordinal=ordinal, name=name, uuid=_uuid(known.get("uuid")), total_bytes=int(known["totalGlobalMem"]),
            pci=str(self._do(self._runtime.deviceGetPCIBusId, ordinal)).lower(),
        )  # fmt: skip

    def present(self) -> list[Card] | None:
        """See the protocol."""
        return self._nvml.cards()

    def versions(self) -> dict[str, Any]:
        """See the protocol."""
        runtime = self._runtime
        return {
            "cupy": self._cupy.__version__,
            "cuda_runtime": int(self._do(runtime.runtimeGetVersion)),
            "cuda_driver_api": int(self._do(runtime.driverGetVersion)),
            "driver": self._nvml.driver_version(),
            "numpy": importlib.metadata.version("numpy"),
        }

    def settings(self) -> dict[str, Any]:
        """See the protocol."""
        return {**self._tf32, "CUPY_TF32": os.environ.get("CUPY_TF32"), "cublas_compute": "32F pedantic"}

    def current(self) -> int:
        """See the protocol."""
        return int(self._do(self._runtime.getDevice))

    def use(self, ordinal: int) -> None:
        """See the protocol."""
        self._do(self._runtime.setDevice, ordinal)

    # Memory

    def malloc(self, nbytes: int) -> int:
        """See the protocol."""
        return int(self._do(self._runtime.malloc, nbytes))

    def free(self, address: int) -> None:
        """See the protocol."""
        self._do(self._runtime.free, address)

    def memory(self) -> tuple[int, int]:
        """See the protocol."""
        free, total = self._do(self._runtime.memGetInfo)
        return int(free), int(total)

    def owner(self, address: int) -> int:
        """See the protocol."""
        return int(self._do(self._runtime.pointerGetAttributes, address).device)

    def can_access_peer(self, ordinal: int, peer: int) -> bool:
        """See the protocol."""
        return bool(self._do(self._runtime.deviceCanAccessPeer, ordinal, peer))

    def enable_peer(self, peer: int) -> None:
        """See the protocol."""
        try:
            self._runtime.deviceEnablePeerAccess(peer)
        except self._error as error:
            if error.status != _ALREADY_ENABLED:
                raise DriverError("peer", str(error)) from error

    def pinned(self, nbytes: int) -> int:
        """See the protocol."""
        return int(self._do(self._runtime.hostAlloc, nbytes, 1))

    def free_pinned(self, address: int) -> None:
        """See the protocol."""
        self._do(self._runtime.freeHost, address)

    def pin(self, address: int, nbytes: int) -> None:
        """See the protocol."""
        self._do(self._runtime.hostRegister, address, nbytes, 1)

    def unpin(self, address: int) -> None:
        """See the protocol."""
        self._do(self._runtime.hostUnregister, address)

    # Order and time

    def stream(self) -> int:
        """See the protocol."""
        return int(self._do(self._runtime.streamCreateWithFlags, _NON_BLOCKING))

    def end_stream(self, stream: int) -> None:
        """See the protocol."""
        self._do(self._runtime.streamDestroy, stream)

    def synchronize(self, stream: int) -> None:
        """See the protocol."""
        self._do(self._runtime.streamSynchronize, stream)

    def event(self, timed: bool = False) -> int:
        """See the protocol."""
        return int(self._do(self._runtime.eventCreateWithFlags, 0 if timed else _NO_TIMING))

    def end_event(self, event: int) -> None:
        """See the protocol."""
        self._do(self._runtime.eventDestroy, event)

    def record(self, event: int, stream: int) -> None:
        """See the protocol."""
        self._do(self._runtime.eventRecord, event, stream)

    def wait(self, stream: int, event: int) -> None:
        """See the protocol."""
        self._do(self._runtime.streamWaitEvent, stream, event, 0)

    def elapsed_us(self, first: int, last: int) -> float:
        """See the protocol."""
        return float(self._do(self._runtime.eventElapsedTime, first, last)) * 1e3

    # Copies

    def copy(self, direction: CopyDirection, dst: int, src: int, nbytes: int, stream: int) -> None:
        """See the protocol."""
        self._do(self._runtime.memcpyAsync, dst, src, nbytes, _DIRECTIONS[direction], stream)

    def copy_peer(self, dst: int, dst_ordinal: int, src: int, src_ordinal: int, nbytes: int, stream: int) -> None:
        """See the protocol."""
        self._do(self._runtime.memcpyPeerAsync, dst, dst_ordinal, src, src_ordinal, nbytes, stream)

    def fill(self, address: int, word: int, count: int, stream: int) -> None:
        """See the protocol."""
        args = (ctypes.c_uint64(address), ctypes.c_uint32(word), ctypes.c_size_t(count), ctypes.c_void_p(stream))
        self._check(self._cuda.cuMemsetD32Async(*args), "cuMemsetD32Async")

    # Work

    def module(self, source: str, names: Sequence[str]) -> Any:
        """See the protocol."""
        compiled = self._cupy.RawModule(code=source, options=("-std=c++17",))
        refused = self._cupy.cuda.driver.CUDADriverError  # no memory for the code, for one
        try:
            kernels = {name: ctypes.c_void_p(compiled.get_function(name).kernel.ptr) for name in names}
            return kernels | {"module": compiled, "looked": int(compiled.get_global("looked").ptr)}
        except self._cupy.cuda.compiler.CompileException as error:
            raise DriverError("library", f"the kernels do not compile here: {error}") from error
        except refused as error:
            raise DriverError(_KINDS.get(error.status, "other"), str(error)) from error

    def launch(
        self, module: Any, name: str, grid: tuple[int, int], block: int, shared: int, args: Sequence[Any], stream: int,
        together: bool = False,
    ) -> None:  # fmt: skip
        """See the protocol."""
        values = [_CTYPES[kind](value) for kind, value in zip(parameters_of(name), args, strict=True)]
        table = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        if shared > _SHARED_BYTES:
            self._check(self._cuda.cuFuncSetAttribute(module[name], _LARGEST_SHARED, shared), f"the room of {name}")
        if together:
            attribute = _Attribute(_COOPERATIVE, 0, 1)
            config = _Launch(*grid, 1, block, 1, 1, shared, stream, ctypes.pointer(attribute), 1)
            status = self._cuda.cuLaunchKernelEx(ctypes.byref(config), module[name], table, None)
        else:
            status = self._cuda.cuLaunchKernel(
                module[name], grid[0], grid[1], 1, block, 1, 1, shared, ctypes.c_void_p(stream), table, None
            )
        self._check(status, f"the launch of {name}")

    def blocks_together(self) -> tuple[int, int]:
        """See the protocol: from compute capability 9.0 on."""
        asked = (_CAPABILITY_MAJOR, _IS_COOPERATIVE, _PROCESSORS, _MOST_SHARED)
        ordinal = self.current()
        major, able, blocks, most = (int(self._do(self._runtime.deviceGetAttribute, a, ordinal)) for a in asked)
        able = able and major >= 9 and hasattr(self._cuda, "cuLaunchKernelEx")
        return (blocks if able else 0), most

    def blas(self) -> Any:
        """See the protocol."""
        from cupy_backends.cuda.libs import cublas

        try:
            handle = cublas.create()
        except cublas.CUBLASError as error:
            raise DriverError("memory" if error.status == _BLAS_NO_MEMORY else "library", str(error)) from error
        cublas.setMathMode(handle, cublas.CUBLAS_PEDANTIC_MATH if hasattr(cublas, "CUBLAS_PEDANTIC_MATH") else 2)
        return handle

    def end_blas(self, handle: Any) -> None:
        """See the protocol."""
        from cupy_backends.cuda.libs import cublas

        cublas.destroy(handle)

    def sgemm(
        self, handle: Any, out: int, x: int, w: int, rows: int, d: int, n: int, stream: int, add: bool = False
    ) -> None:
        """See the protocol. cuBLAS counts columns first, so it is handed the transposed product."""
        from cupy_backends.cuda.libs import cublas

        one, beta = ctypes.c_float(1.0), ctypes.c_float(float(add))
        ends = (ctypes.addressof(one), w, n, x, n, ctypes.addressof(beta), out, d)
        self._by_library(stream, cublas.sgemm, handle, 1, 0, d, rows, n, *ends)

    def gemm_narrow(
        self, handle: Any, out: int, x: int, w: int, rows: int, d: int, n: int, stream: int, *, dtype: str,
        narrow_out: bool, add: bool,
    ) -> None:  # fmt: skip
        """See the protocol."""
        from cupy_backends.cuda.libs import cublas

        cublas.setMathMode(handle, 0)  # pedantic, which a handle starts with, would leave the tensor cores idle
        kind = _LIBRARY_TYPES[dtype]
        one, beta = ctypes.c_float(1.0), ctypes.c_float(float(add))
        ends = (ctypes.addressof(one), w, kind, n, x, kind, n, ctypes.addressof(beta), out)
        out_kind = kind if narrow_out else _LIBRARY_TYPES["fp32"]
        self._by_library(stream, cublas.gemmEx, handle, 1, 0, d, rows, n, *ends, out_kind, d, _COMPUTE_32F, -1)

    def _by_library(self, stream: int, call: Callable[..., Any], *args: Any) -> None:
        from cupy_backends.cuda.libs import cublas

        # CuPy hands the handle its own current stream at every call, so ours has to be that one.
        with self._cupy.cuda.Stream.from_external(_Foreign(stream)):
            try:
                call(*args)
            except cublas.CUBLASError as error:
                raise DriverError("other", f"cuBLAS {call.__name__} answered {error}") from error

    def begin_capture(self, stream: int) -> None:
        """See the protocol."""
        self._do(self._runtime.streamBeginCapture, stream, self._runtime.streamCaptureModeThreadLocal)

    def end_capture(self, stream: int) -> Any:
        """See the protocol."""
        graph = self._do(self._runtime.streamEndCapture, stream)
        try:
            return self._do(self._runtime.graphInstantiate, graph)
        finally:
            self._do(self._runtime.graphDestroy, graph)

    def replay(self, graph: Any, stream: int) -> None:
        """See the protocol."""
        self._do(self._runtime.graphLaunch, graph, stream)

    def end_graph(self, graph: Any) -> None:
        """See the protocol."""
        self._do(self._runtime.graphExecDestroy, graph)

    # Witnesses

    def trace(self) -> Any:
        """See the protocol."""
        from executor.observers.cupti import CuptiUnavailableError, driver_trace

        try:
            return driver_trace()
        except CuptiUnavailableError as error:
            return str(error)

    def outer_trace(self) -> Any:
        """See the protocol."""
        from executor.observers.cupti import OUTER

        return OUTER[0] if OUTER else None

    def counters(self, ordinal: int) -> dict[str, Any]:
        """See the protocol."""
        from executor.observers.nvml_counters import read_counters

        counters: dict[str, Any] = read_counters(self.card(ordinal).uuid)
        return counters


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute of cuda.h: its number, padding, and the first int of a value of 64 bytes."""

    _fields_: ClassVar = [
        ("id", ctypes.c_int),
        ("pad", ctypes.c_int),
        ("value", ctypes.c_int),
        ("rest", ctypes.c_int * 15),
    ]


class _Launch(ctypes.Structure):
    """CUlaunchConfig of cuda.h."""

    _fields_: ClassVar = [
        *((name, ctypes.c_uint) for name in ("gx", "gy", "gz", "bx", "by", "bz", "shared")),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    ]


_CAPABILITY_MAJOR, _IS_COOPERATIVE, _PROCESSORS, _MOST_SHARED = 75, 95, 16, 97
"""cudaDevAttrComputeCapabilityMajor, cudaDevAttrCooperativeLaunch, cudaDevAttrMultiProcessorCount and
cudaDevAttrMaxSharedMemoryPerBlockOptin."""
_SHARED_BYTES = 48 << 10
"""Shared memory of a block that a kernel has without asking for more."""
_LARGEST_SHARED = 8
"""CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES."""
_COOPERATIVE = 2
"""CU_LAUNCH_ATTRIBUTE_COOPERATIVE."""


class _Foreign:
    """A stream of ours in the words of the CUDA stream protocol, version 0."""

    def __init__(self, stream: int) -> None:
        self._stream = stream

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._stream


def _uuid(raw: Any) -> str | None:
    """CUDA's sixteen bytes as NVML words them."""
    octets = bytes(raw) if isinstance(raw, (bytes, bytearray)) else None
    if octets is None or len(octets) < 16:
        return None
    digits = octets[:16].hex()
    return f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


class _Nvml:
    """What the driver's tools say of the cards: a second source of identity. Says None where it cannot be asked."""

    def __init__(self) -> None:
        self._lib: Any = None
        try:
            import pynvml

            pynvml.nvmlInit()
            self._lib = pynvml
        except (ImportError, OSError):
            return
        except Exception as error:  # its error class cannot be named where it cannot be imported
            if type(error).__module__ != "pynvml":
                raise

    def driver_version(self) -> str | None:
        if self._lib is None:
            return None
        said = self._lib.nvmlSystemGetDriverVersion()
        return said.decode() if isinstance(said, bytes) else str(said)

    def cards(self) -> list[Card] | None:
        lib = self._lib
        if lib is None:
            return None
        cards = []
        for number in range(lib.nvmlDeviceGetCount()):
            handle = lib.nvmlDeviceGetHandleByIndex(number)
            pci = lib.nvmlDeviceGetPciInfo(handle).busId
            cards.append(Card(
                ordinal=number, name=_text(lib.nvmlDeviceGetName(handle)), uuid=_text(lib.nvmlDeviceGetUUID(handle)),
                pci=_text(pci).lower(), total_bytes=int(lib.nvmlDeviceGetMemoryInfo(handle).total),
            ))  # fmt: skip
        return cards


def _text(said: Any) -> str:
    return said.decode(errors="replace") if isinstance(said, bytes) else str(said)
