"""The one error tree. The lowest package owns it so that every room may raise it.

    KvWaybillError                 exit code 2 unless the class says otherwise
      DescriptionError             a file or an argument is wrong: carries every fault found in it
      PlacementError               names a device or a route that is not described
      InconclusiveError            this machine or these inputs cannot answer (exit code 3)
        DeviceMemoryError          a device has less free memory now than the plan needs
      BackendError                 the executor broke during a run (exit code 4)
        BackendUnavailableError    the backend cannot run here, or declined work it was given
        DeviceMismatchError        a call named one device and was handed another's buffer
        CopyError                  wrong size, freed, strided or overlapping operands of a copy
        FenceError                 an allocation beyond the fence that the orders set
        LedgerOverflowError        more events than the ledger was made for

A refusal or a mismatch is a value (`Refused`, `Comparison`), never an exception.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

MAX_FAULTS_TOLD = 20


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with an input: where it is, which field, what is wrong and how to mend it.

    `line` and `column` count from 1; 0 means that the fault concerns the input as a whole. `vx_code` is the code that
    Vx has for it, in its own files.
    """

    source: str
    field: str
    message: str
    line: int = 0
    column: int = 0
    vx_code: str | None = None

    def __str__(self) -> str:
        """One line of printable characters, whatever the input held: a terminal shows it as it is."""
        where = f"{self.source}:{self.line}:{self.column}" if self.line else self.source
        told = " ".join(part for part in (f"{where}:" if not self.line else where, self.field, self.message) if part)
        return told if told.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in told)


class KvWaybillError(Exception):
    """Any failure that kvwaybill words for its user. `exit_code` is what the command ends with."""

    exit_code = 2


class DescriptionError(KvWaybillError):
    """A file or an argument is wrong. Holds every fault of one pass, in the order of the file."""

    def __init__(self, faults: Fault | Iterable[Fault]) -> None:
        self.faults: tuple[Fault, ...] = (faults,) if isinstance(faults, Fault) else tuple(faults)
        told = [str(fault) for fault in self.faults[:MAX_FAULTS_TOLD]]
        if len(self.faults) > MAX_FAULTS_TOLD:
            told.append(f"... and {len(self.faults) - MAX_FAULTS_TOLD} more faults")
        super().__init__("\n".join(told))

    @classmethod
    def at(cls, source: str, field: str, message: str, line: int = 0, column: int = 0) -> DescriptionError:
        """A DescriptionError of a single fault."""
        return cls(Fault(source=source, field=field, message=message, line=line, column=column))


def raise_in_order(faults: Iterable[Fault]) -> None:
    """Raises DescriptionError of the faults of one file, in the order of its lines; nothing where there are none."""
    if found := sorted(faults, key=lambda fault: (fault.line, fault.column)):
        raise DescriptionError(found)


class PlacementError(KvWaybillError):
    """A placement names a device that the fleet does not describe, or one that cannot hold a phase."""


class InconclusiveError(KvWaybillError):
    """The question cannot be answered with what is known or present here."""

    exit_code = 3


class DeviceMemoryError(InconclusiveError):
    """A device had not that much free memory when the run began; admission cannot know what others hold by then."""

    def __init__(self, message: str, device: str, free_bytes: int) -> None:
        super().__init__(message)
        self.device, self.free_bytes = device, free_bytes


class BackendError(KvWaybillError):
    """The executor broke during a run."""

    exit_code = 4


class BackendUnavailableError(BackendError):
    """The backend cannot run here, or declined work that it had already been given. Work never moves elsewhere."""


class DeviceMismatchError(BackendError):
    """A call named one device and was handed a buffer that lies in another device's arena."""


class CopyError(BackendError):
    """A copy whose operands differ in size, were freed, or are not contiguous."""


class FenceError(BackendError):
    """An allocation that would pass the fence of its arena."""


class LedgerOverflowError(BackendError):
    """The ledger was sized for fewer events than the run produced."""
