"""The driver's records as bytes: what is read from them, and which traces are errors. No driver is needed."""

from __future__ import annotations

import ctypes
import struct
import sys
from types import ModuleType
from typing import Any

import pytest

from executor.observers import cupti
from executor.observers.cupti import CopyRecord, CuptiUnavailableError, DriverTrace
from executor.observers.nvml_counters import NOT_SUPPORTED, counter_rise, read_counters
from fleet.errors import BackendError


class _Library:
    """CUPTI's entry points, answering yes."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: 0


def trace() -> DriverTrace:
    made = DriverTrace.__new__(DriverTrace)
    made._lib, made._live, made.name = _Library(), {}, "cupti 1"
    made._popped = ctypes.c_uint64()
    made._forget()
    return made


def feed(made: DriverTrace, *records: bytes) -> None:
    for raw in records:
        held = ctypes.create_string_buffer(raw + bytes(64))
        made._read(ctypes.addressof(held))


def memcpy(kind: int, nbytes: int, device: int, number: int, end: int = 9, src: int = 2, dst: int = 3) -> bytes:
    return struct.pack("<I4B3Q4I", 1, kind, src, dst, 0, nbytes, 5, end, device, 1, 7, number)


def peer(nbytes: int, src: int, dst: int, number: int) -> bytes:
    return struct.pack("<I4B3Q8I", 22, 10, 3, 3, 0, nbytes, 5, 9, src, 1, 7, src, 1, dst, 2, number)


def external(tag: int, number: int) -> bytes:
    return struct.pack("<IIQI", 39, 3, tag, number)


def runtime(call: int, number: int) -> bytes:
    return struct.pack("<IIQQIII", 5, call, 1, 2, 3, 4, number)


def memset(nbytes: int) -> bytes:
    return struct.pack("<IIQQQI", 2, 0, nbytes, 1, 2, 0)


def test_copies_are_read_with_their_ends_tags_and_entry_points() -> None:
    made = trace()
    feed(made, external(16, 3), memcpy(1, 400, 1, 3), peer(1 << 40, 0, 1, 4), external(17, 4), runtime(161, 4))
    feed(made, memcpy(2, 4, 1, 5, src=3, dst=1), memcpy(8, 64, 0, 6, src=3, dst=3), memset(4096), runtime(31, 5))
    report = made.end()
    assert report.records == [
        CopyRecord(16, "h2d", 400, None, 1, "pinned", "device", 5, 9),
        CopyRecord(17, "p2p", 1 << 40, 0, 1, "device", "device", 5, 9, peer_call=True),
        CopyRecord(None, "d2h", 4, 1, None, "device", "pageable", 5, 9),
        CopyRecord(None, "d2d", 64, 0, 0, "device", "device", 5, 9),
    ]
    assert report.memsets == (1, 4096)
    assert report.witness == "cupti 1"


def test_what_came_before_begin_is_forgotten() -> None:
    made = trace()
    feed(made, memcpy(1, 400, 0, 3))
    made.begin()
    assert made.end().records == []


def test_unfinished_and_lost_records_are_errors() -> None:
    made = trace()
    feed(made, memcpy(1, 400, 0, 3, end=0))
    with pytest.raises(BackendError, match="1 copies were not finished"):
        made.end()
    made = trace()
    made._lost = 2
    with pytest.raises(BackendError, match="lost 2 records"):
        made.end()


def test_a_kind_that_nobody_knows_is_told_by_its_number() -> None:
    made = trace()
    feed(made, memcpy(77, 1, 0, 1), struct.pack("<I", 99))
    assert [record.kind for record in made.end().records] == ["kind 77"]


def test_another_profiler_is_told_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    class Busy(_Library):
        cuptiActivityRegisterCallbacks = staticmethod(lambda *_: 39)  # noqa: N815 - CUPTI's own name
        cuptiActivityGetNextRecord = cuptiActivityPushExternalCorrelationId = _Library()  # noqa: N815
        cuptiActivityPopExternalCorrelationId = cuptiActivityGetNumDroppedRecords = _Library()  # noqa: N815

    monkeypatch.setattr(cupti.C, "CDLL", lambda path: Busy())
    with pytest.raises(CuptiUnavailableError, match="error 39: another profiler holds it"):
        DriverTrace("libcupti.so")


def test_a_process_that_is_traced_from_outside_has_no_second_witness(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cupti.HELD, "1")
    with pytest.raises(CuptiUnavailableError, match="kvwaybill witness looks"):
        cupti.driver_trace()


def test_counters_wrap_and_what_is_not_read_says_so() -> None:
    before = {"pcie_tx_bytes": (1 << 32) - 10, "nvlink_tx_kib": 5, "nvlink_rx_kib": NOT_SUPPORTED}
    after = {"pcie_tx_bytes": 20, "nvlink_tx_kib": 1029, "nvlink_rx_kib": 3}
    assert counter_rise(before, after) == {
        "pcie_tx_bytes": 30, "nvlink_tx_kib": 1024, "nvlink_rx_kib": NOT_SUPPORTED,
    }  # fmt: skip


def test_counters_that_a_machine_refuses_are_not_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    class NVMLError(Exception):
        pass

    def refuse(*_: Any) -> None:
        raise NVMLError("no")

    lib = ModuleType("pynvml")
    lib.NVMLError, lib.nvmlInit = NVMLError, refuse  # type: ignore[attr-defined]  # a module made here
    monkeypatch.setitem(sys.modules, "pynvml", lib)
    assert set(read_counters("GPU-x").values()) == {NOT_SUPPORTED}
