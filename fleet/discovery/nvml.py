"""What a driver answers about its cards: the protocol that a driver library is read through, and NVML by pynvml.

Every question may go unanswered (a virtual machine shows one GPU and no NVLink, a container no PCI tree): then it is
NotTold, with the driver's words, and whoever asked keeps the figure unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from fleet.yaml_source import printable

__all__ = ["Driver", "NotTold", "NvLink", "NvmlDriver", "Pcie", "Reported", "Slice", "open_nvml"]

MAX_SLICES = 64
MAX_NVLINKS = 36

NvLinkEnd = Literal["gpu", "switch", "cpu", "unknown"]
Peer = Literal["direct", "staged", "unknown"]


class NotTold(Exception):  # noqa: N818 - an answer that a driver gives, not a failure of ours
    """The driver has no answer. Its words are the message."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reported:
    """Bytes as the driver reports them: all, and those that it keeps for itself (None = not told)."""

    total: int
    reserved: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Pcie:
    """Generation and lanes: the most that card and slot can, and what they run at now (None = not told)."""

    max_generation: int
    max_lanes: int
    generation: int | None = None
    lanes: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class NvLink:
    """One active NVLink of a card: what is at its far end, the PCI address of that, MB/s one way as reported."""

    end: NvLinkEnd
    pci: str | None = None
    megabytes_per_s: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Slice:
    """One MIG slice of a card. `profile` is `1g.10gb` where the driver tells it."""

    uuid: str | None
    memory: Reported | None
    profile: str | None = None


class Driver(Protocol):
    """Cards are numbered from 0 in the driver's own order. Every method may raise NotTold."""

    def version(self) -> str:
        """Of the driver."""

    def count(self) -> int:
        """How many cards it lists."""

    def name(self, card: int) -> str:
        """The product name."""

    def uuid(self, card: int) -> str:
        """The UUID of the card."""

    def pci(self, card: int) -> str:
        """The PCI address."""

    def serial(self, card: int) -> str:
        """The serial number of the board."""

    def memory(self, card: int) -> Reported:
        """Total and reserved bytes."""

    def pcie(self, card: int) -> Pcie:
        """The slot."""

    def numa(self, card: int) -> int:
        """The NUMA node nearest to the card."""

    def cpus(self, card: int) -> list[int]:
        """The logical processors nearest to the card."""

    def nvlinks(self, card: int) -> list[NvLink]:
        """The active NVLinks. An empty list says that there are none; NotTold that nobody knows."""

    def c2c(self, card: int) -> bool:
        """Whether the card hangs on its processor over NVLink-C2C."""

    def slices(self, card: int) -> list[Slice] | None:
        """The MIG slices; None where the card is not partitioned."""

    def peer(self, src: int, dst: int) -> Peer:
        """Whether src may read and write the memory of dst directly."""

    def ancestor(self, one: int, other: int) -> str:
        """PIX, PXB, PHB, NODE, SYS or INT: how far two cards lie apart on PCIe."""


_ENDS: dict[int, NvLinkEnd] = {0: "gpu", 1: "cpu", 2: "switch"}
_ANCESTORS = {0: "INT", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_READ, _WRITE = 0, 1
"""Indices of nvmlGpuP2PCapsIndex_t; pynvml's own name for the first is a tuple."""
_P2P_OK, _P2P_UNKNOWN = 0, 6
_ALL_LINKS_SPEED = 90
"""NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON."""
_NODE_SCOPE = 0
_NO_BUS = "FFFFFFFF:FF"
"""What a driver in a virtual machine gives as the address of a switch that the guest does not see (seen on an H200)."""


class NvmlDriver:
    """NVML through the module `pynvml` (nvidia-ml-py), which a test may replace."""

    def __init__(self, library: Any) -> None:
        self._nvml = library
        self._handles: dict[int, Any] = {}

    def _ask(self, function: str, *arguments: Any) -> Any:
        """The answer of one NVML call; NotTold in NVML's words, or where this version has no such call."""
        call = getattr(self._nvml, function, None)
        if call is None:
            raise NotTold(f"{function} is not in this version of pynvml")
        try:
            return call(*arguments)
        except self._nvml.NVMLError as error:
            raise NotTold(printable(str(error), 80)) from error

    def _card(self, card: int) -> Any:
        if card not in self._handles:
            self._handles[card] = self._ask("nvmlDeviceGetHandleByIndex", card)
        return self._handles[card]

    def _of(self, function: str, card: int, *arguments: Any) -> Any:
        return self._ask(function, self._card(card), *arguments)

    def version(self) -> str:
        return _text(self._ask("nvmlSystemGetDriverVersion"))

    def count(self) -> int:
        return int(self._ask("nvmlDeviceGetCount"))

    def name(self, card: int) -> str:
        return _text(self._of("nvmlDeviceGetName", card))

    def uuid(self, card: int) -> str:
        return _text(self._of("nvmlDeviceGetUUID", card))

    def pci(self, card: int) -> str:
        return _text(self._of("nvmlDeviceGetPciInfo", card).busId)

    def serial(self, card: int) -> str:
        return _text(self._of("nvmlDeviceGetSerial", card))

    def memory(self, card: int) -> Reported:
        return self._reported(self._card(card))

    def _reported(self, handle: Any) -> Reported:
        version = getattr(self._nvml, "nvmlMemory_v2", None)
        if version is not None:
            try:
                told = self._ask("nvmlDeviceGetMemoryInfo", handle, version)
                return Reported(total=int(told.total), reserved=int(told.reserved))
            except NotTold:
                pass  # an older driver knows the first version only, which tells no reserve
        return Reported(total=int(self._ask("nvmlDeviceGetMemoryInfo", handle).total))

    def pcie(self, card: int) -> Pcie:
        most = [int(self._of(f"nvmlDeviceGetMaxPcieLink{what}", card)) for what in ("Generation", "Width")]
        now = [self._maybe(f"nvmlDeviceGetCurrPcieLink{what}", card) for what in ("Generation", "Width")]
        return Pcie(max_generation=most[0], max_lanes=most[1], generation=now[0], lanes=now[1])

    def _maybe(self, function: str, card: int) -> int | None:
        try:
            return int(self._of(function, card))
        except NotTold:
            return None

    def numa(self, card: int) -> int:
        """The node of the card, else the only one in its memory affinity (a mask of 64-bit words)."""
        try:
            return int(self._of("nvmlDeviceGetNumaNodeId", card))
        except NotTold:
            nodes = _bits(self._of("nvmlDeviceGetMemoryAffinity", card, 16, _NODE_SCOPE))
        if len(nodes) != 1:
            raise NotTold(f"near to {len(nodes)} NUMA nodes")
        return nodes[0]

    def cpus(self, card: int) -> list[int]:
        return _bits(self._of("nvmlDeviceGetCpuAffinity", card, 64))

    def nvlinks(self, card: int) -> list[NvLink]:
        found, refusals = [], []
        for link in range(MAX_NVLINKS):
            try:
                active = bool(self._of("nvmlDeviceGetNvLinkState", card, link))
            except NotTold as told:
                refusals.append(told)
                continue  # cards have fewer links than NVML has numbers
            if active:
                found.append(self._nvlink(card, link))
        if len(refusals) == MAX_NVLINKS:
            raise refusals[0]
        return found

    def _nvlink(self, card: int, link: int) -> NvLink:
        end: NvLinkEnd = "unknown"
        pci = None
        with suppress(NotTold):  # older drivers tell the address alone
            end = _ENDS.get(int(self._of("nvmlDeviceGetNvLinkRemoteDeviceType", card, link)), "unknown")
        with suppress(NotTold):  # behind an NVSwitch of another tray there is none
            pci = _text(self._of("nvmlDeviceGetNvLinkRemotePciInfo", card, link).busId)
        if pci is not None and pci.upper().startswith(_NO_BUS):
            pci = None
        return NvLink(end=end, pci=pci, megabytes_per_s=self._speed(card))

    def _speed(self, card: int) -> int | None:
        try:
            told = self._of("nvmlDeviceGetFieldValues", card, [_ALL_LINKS_SPEED])[0]
        except NotTold:
            return None
        return int(told.value.uiVal) or None if told.nvmlReturn == 0 else None

    def c2c(self, card: int) -> bool:
        return bool(self._of("nvmlDeviceGetC2cModeInfoV1", card).isC2cEnabled)

    def slices(self, card: int) -> list[Slice] | None:
        try:
            current = self._of("nvmlDeviceGetMigMode", card)[0]
        except NotTold:
            return None  # cards without MIG do not support the question
        if not current:
            return None
        found = []
        for number in range(min(int(self._of("nvmlDeviceGetMaxMigDeviceCount", card)), MAX_SLICES)):
            try:
                handle = self._of("nvmlDeviceGetMigDeviceHandleByIndex", card, number)
            except NotTold:
                continue  # a place without a slice
            found.append(self._slice(handle))
        return found

    def _slice(self, handle: Any) -> Slice:
        def told(ask: Callable[[], Any]) -> Any:
            try:
                return ask()
            except NotTold:
                return None

        uuid = told(lambda: _text(self._ask("nvmlDeviceGetUUID", handle)))
        name = told(lambda: _text(self._ask("nvmlDeviceGetName", handle))) or ""
        profile = name.rpartition(" MIG ")[2] if " MIG " in name else None
        return Slice(uuid=uuid, memory=told(lambda: self._reported(handle)), profile=profile)

    def peer(self, src: int, dst: int) -> Peer:
        words = [int(self._of("nvmlDeviceGetP2PStatus", src, self._card(dst), index)) for index in (_READ, _WRITE)]
        if any(word not in (_P2P_OK, _P2P_UNKNOWN) for word in words):
            return "staged"
        return "direct" if words == [_P2P_OK, _P2P_OK] else "unknown"

    def ancestor(self, one: int, other: int) -> str:
        level = int(self._of("nvmlDeviceGetTopologyCommonAncestor", one, self._card(other)))
        if level not in _ANCESTORS:
            raise NotTold(f"level {level} is not known")
        return _ANCESTORS[level]


def _text(value: Any) -> str:
    """NVML's text: bytes in older versions of pynvml."""
    text = value.decode("utf-8", errors="replace") if isinstance(value, bytes) else str(value)
    text = text.strip("\0 ")
    if not text:
        raise NotTold("an empty answer")
    return text


def _bits(words: Any) -> list[int]:
    """The numbers of the bits that are set in a row of 64-bit words."""
    return [64 * place + bit for place, word in enumerate(words) for bit in range(64) if int(word) >> bit & 1]


def open_nvml() -> tuple[NvmlDriver | None, Callable[[], None], str]:
    """(driver, how to close it, why there is none). Loads pynvml only when asked."""
    try:
        import pynvml
    except ImportError:
        return None, _nothing, "the library nvidia-ml-py is not installed (pip install 'kvwaybill[nvml]')"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return None, _nothing, f"NVML does not answer: {printable(str(error), 80)}"
    return NvmlDriver(pynvml), pynvml.nvmlShutdown, ""


def _nothing() -> None:
    """There is nothing to close."""
