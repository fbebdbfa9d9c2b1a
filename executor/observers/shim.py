"""Runs a Python program under the driver's witness: `python -m executor.observers.shim RESULT.json PROGRAM [ARG ...]`.

Started by `kvwaybill witness`, in the interpreter of the program. The trace begins before the program's first line and
ends after its last; what it saw is written to RESULT.json, also when the program fails, whose exit code is passed on.
Only the standard library and the tracer are imported here, so that the program finds its process as it expects it.
"""

from __future__ import annotations

import ctypes
import json
import os
import runpy
import sys
from typing import Any

from executor.observers.cupti import HELD, LOOK, OUTER, CuptiUnavailableError, DriverTrace, TraceReport, find_library
from fleet.errors import KvWaybillError

__all__ = ["main", "summed"]

_FAILED = 1
_NO_FILE = 2
_MOST_DEVICES = 64


def main(arguments: list[str]) -> int:
    """See the module. `arguments`: the result file, then a script, or `-m` and a module, or `-c` and code."""
    result, program = arguments[0], arguments[1:]
    path, trace = find_library(), None
    try:
        if path is None:
            raise CuptiUnavailableError("CUPTI is not installed; nvidia-cuda-cupti makes the driver a witness")
        trace = DriverTrace(path, driver_api=True)
        os.environ[HELD] = "1"
        OUTER.append(trace)
    except CuptiUnavailableError as error:
        _write(result, {"witness": "none", "why_not": str(error)})
    code = _run(program)  # outside of `except`: an error of the program is no consequence of ours
    if trace is None:
        return code
    try:
        _synchronize()
        told = summed(trace.end()) | {"devices": _devices()}
    except KvWaybillError as error:
        told = {"witness": "none", "why_not": str(error)}
    _write(result, told)
    return code


def summed(report: TraceReport) -> dict[str, Any]:
    """Copies by kind, ends and memory: {witness, copies [{kind, src, dst, src_memory, dst_memory, copies, bytes}]}.

    `looks` are copies that this project's own witnesses made in the program, under the tag of a look; absent of others.
    """
    sums: dict[tuple[Any, ...], list[int]] = {}
    for record in report.records:
        key = (record.tag == LOOK, record.kind, record.src, record.dst, record.src_memory, record.dst_memory)
        held = sums.setdefault(key, [0, 0, 0, 0])
        for column, more in enumerate((1, record.nbytes, record.end_ns - record.start_ns, int(record.peer_call))):
            held[column] += more
    names = ("looks", "kind", "src_ordinal", "dst_ordinal", "src_memory", "dst_memory")
    figures = ("copies", "bytes", "busy_ns", "peer_calls")
    rows = [
        dict(zip(names, key, strict=True)) | dict(zip(figures, held, strict=True))
        for key, held in sorted(sums.items(), key=str)
    ]
    for row in rows:
        if not row["looks"]:
            del row["looks"]
    memsets = {"count": report.memsets[0], "bytes": report.memsets[1]}
    return {"witness": report.witness, "copies": rows, "memsets": memsets}


def _run(program: list[str]) -> int:
    """The program as the interpreter would run it; its exit code."""
    try:
        if program[0] == "-m":
            sys.argv = program[1:]
            sys.path.insert(0, "")
            runpy.run_module(program[1], run_name="__main__", alter_sys=True)
        elif program[0] == "-c":
            sys.argv = ["-c", *program[2:]]
            exec(compile(program[1], "<string>", "exec"), {"__name__": "__main__"})  # the user's own code, as asked
        else:
            if not os.path.exists(program[0]):
                sys.stderr.write(f"can't open file {program[0]!r}: no such file\n")
                return _NO_FILE
            sys.argv = program
            sys.path.insert(0, os.path.dirname(os.path.abspath(program[0])))
            runpy.run_path(program[0], run_name="__main__")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - whatever the program raised is shown as its interpreter would show it
        sys.excepthook(*sys.exc_info())
        return _FAILED
    return 0


def _driver() -> Any:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def _synchronize() -> None:
    """Wait for every device that the program used: records of unfinished copies would be no records."""
    lib = _driver()
    if lib is None or lib.cuInit(0):
        return
    for device in _handles(lib):
        flags, active, context = ctypes.c_uint(), ctypes.c_int(), ctypes.c_void_p()
        if lib.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active)) or not active.value:
            continue
        if lib.cuDevicePrimaryCtxRetain(ctypes.byref(context), device):
            continue
        lib.cuCtxPushCurrent_v2(context)
        lib.cuCtxSynchronize()
        lib.cuCtxPopCurrent_v2(ctypes.byref(context))
        lib.cuDevicePrimaryCtxRelease_v2(device)


def _handles(lib: Any) -> list[ctypes.c_int]:
    count = ctypes.c_int()
    if lib.cuDeviceGetCount(ctypes.byref(count)):
        return []
    handles = []
    for ordinal in range(min(count.value, _MOST_DEVICES)):
        handle = ctypes.c_int()
        if lib.cuDeviceGet(ctypes.byref(handle), ordinal) == 0:
            handles.append(handle)
    return handles


def _devices() -> list[dict[str, Any]]:
    """[{ordinal, uuid, pci}] as the driver tells it."""
    lib = _driver()
    if lib is None:
        return []
    found = []
    for ordinal, device in enumerate(_handles(lib)):
        raw, text = (ctypes.c_ubyte * 16)(), ctypes.create_string_buffer(32)
        if lib.cuDeviceGetUuid_v2(raw, device) or lib.cuDeviceGetPCIBusId(text, 32, device):
            continue
        digits = bytes(raw).hex()
        parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
        found.append({"ordinal": ordinal, "uuid": "GPU-" + "-".join(parts), "pci": text.value.decode().lower()})
    return found


def _write(path: str, told: dict[str, Any]) -> None:
    with open(path + ".part", "w", encoding="utf-8") as file:
        json.dump(told, file)
    os.replace(path + ".part", path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
