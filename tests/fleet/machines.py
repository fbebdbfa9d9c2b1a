"""Machines made for tests: trees of /proc and /sys in a folder, and drivers that answer from a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleet.discovery.nvml import NotTold, NvLink, Pcie, Peer, Reported, Slice

MIB = 2**20
GIB = 2**30
HBM3 = 81559 * MIB


class Machine:
    """A folder that looks like the root of a machine."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "proc").mkdir()
        (root / "sys").mkdir()

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n", encoding="utf-8")

    def processors(self, model: str, sockets: int, cpus: int) -> None:
        """x86: `cpus` logical processors in each socket, a NUMA node a socket of 256 GiB."""
        blocks = []
        for cpu in range(sockets * cpus):
            socket = cpu // cpus
            blocks.append(
                f"processor\t: {cpu}\nvendor_id\t: GenuineIntel\nmodel name\t: {model}\nphysical id\t: {socket}\n"
            )
            self.write(f"sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id", str(socket))
        self.write("proc/cpuinfo", "\n".join(blocks))
        self.write("sys/devices/system/cpu/online", f"0-{sockets * cpus - 1}")
        self.write("proc/meminfo", f"MemTotal:       {sockets * 256 * 2**20} kB\nMemFree: 1 kB")
        for socket in range(sockets):
            self.node(socket, f"{socket * cpus}-{(socket + 1) * cpus - 1}", 256 * 2**20)

    def node(self, number: int, cpus: str, kib: int) -> None:
        place = f"sys/devices/system/node/node{number}"
        self.write(f"{place}/cpulist", cpus)
        self.write(f"{place}/meminfo", f"Node {number} MemTotal:       {kib} kB\nNode {number} MemFree:  12 kB")

    def pci(self, *path: str, **files: str) -> str:
        """A PCI device at the end of `path`: a host bridge `pci0000:00`, then addresses. Gives its folder."""
        place = "/".join(("sys/devices", *path))
        for name, text in files.items():
            self.write(f"{place}/{name.replace('__', '/')}", text)
        entry = self.root / "sys/bus/pci/devices" / path[-1]
        entry.parent.mkdir(parents=True, exist_ok=True)
        entry.symlink_to(self.root / place)
        return place

    def bridge(self, *path: str, speed: str = "32.0 GT/s PCIe", width: str = "16") -> None:
        self.pci(*path, **{"class": "0x060400", "vendor": "0x1000", "device": "0xc030", "max_link_speed": speed,
                           "max_link_width": width, "current_link_width": width})  # fmt: skip

    def card(
        self,
        *path: str,
        device: str = "0x2330",
        vendor: str = "0x10de",
        code: str = "0x030200",
        numa: int = 0,
        **more: str,
    ) -> None:
        """A GPU, an H100 SXM unless said otherwise, on a PCIe 5.0 x16 slot."""
        files = {"class": code, "vendor": vendor, "device": device, "numa_node": str(numa)}
        link = {"max_link_speed": "32.0 GT/s PCIe", "max_link_width": "16", "current_link_width": "16",
                "current_link_speed": "2.5 GT/s PCIe"}  # fmt: skip
        self.pci(*path, **files, **(link | more))

    def nic(self, *path: str, name: str = "mlx5_0", net: str = "ens1", numa: int = 0) -> None:
        files = {"class": "0x020700", "vendor": "0x15b3", "device": "0x1021", "numa_node": str(numa),
                 "max_link_speed": "32.0 GT/s PCIe", "max_link_width": "16", "current_link_width": "16",
                 f"infiniband__{name}__node_desc": "x", f"net__{net}__address": "aa:bb:cc:dd:ee:ff"}  # fmt: skip
        self.pci(*path, **files)
        self.write(f"sys/class/infiniband/{name}/ports/1/rate", "400 Gb/sec (4X NDR)")
        self.write(f"sys/class/net/{net}/speed", "400000")


@dataclass
class FakeDriver:
    """Answers from what is set; everything else is "Not Supported", as NVML words it."""

    names: list[str]
    uuids: list[str] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)
    memories: Mapping[int, Reported] = field(default_factory=dict)
    lanes: Mapping[int, list[NvLink]] = field(default_factory=dict)
    peers: Callable[[int, int], Peer | None] = lambda src, dst: None
    distances: Callable[[int, int], str | None] = lambda one, other: None
    parts: Mapping[int, list[Slice]] = field(default_factory=dict)
    slot: Pcie | None = None
    chip: bool | None = None
    numas: Mapping[int, int] = field(default_factory=dict)

    def _at(self, table: Any, key: Any) -> Any:
        try:
            return table[key]
        except (KeyError, IndexError):
            raise NotTold("Not Supported") from None

    def _said(self, answer: Any) -> Any:
        if answer is None:
            raise NotTold("Not Supported")
        return answer

    def version(self) -> str:
        return "580.0"

    def count(self) -> int:
        return len(self.names)

    def name(self, card: int) -> str:
        return str(self.names[card])

    def uuid(self, card: int) -> str:
        return str(self._at(self.uuids, card))

    def pci(self, card: int) -> str:
        return str(self._at(self.addresses, card))

    def serial(self, card: int) -> str:
        return f"SERIAL-OF-{card}"

    def memory(self, card: int) -> Reported:
        found: Reported = self._at(self.memories, card)
        return found

    def pcie(self, card: int) -> Pcie:
        found: Pcie = self._said(self.slot)
        return found

    def numa(self, card: int) -> int:
        return int(self._at(self.numas, card))

    def cpus(self, card: int) -> list[int]:
        raise NotTold("Not Supported")

    def nvlinks(self, card: int) -> list[NvLink]:
        return list(self._at(self.lanes, card))

    def c2c(self, card: int) -> bool:
        return bool(self._said(self.chip))

    def slices(self, card: int) -> list[Slice] | None:
        return self.parts.get(card)

    def peer(self, src: int, dst: int) -> Peer:
        found: Peer = self._said(self.peers(src, dst))
        return found

    def ancestor(self, one: int, other: int) -> str:
        return str(self._said(self.distances(one, other)))


def uuid(number: int) -> str:
    return f"GPU-{number:08x}-0000-4000-8000-{number:012x}"


def hgx(**changes: Any) -> FakeDriver:
    """Eight H100 SXM, 18 NVLinks each into NVSwitches, NVML's order that of the addresses."""
    lane = NvLink(end="switch", pci="0000:85:00.0", megabytes_per_s=26562)
    known: dict[str, Any] = {
        "names": ["NVIDIA H100 80GB HBM3"] * 8,
        "uuids": [uuid(i) for i in range(8)],
        "addresses": [f"00000000:{16 + i:02X}:00.0" for i in range(8)],
        "memories": dict.fromkeys(range(8), Reported(total=HBM3, reserved=600 * MIB)),
        "lanes": dict.fromkeys(range(8), [lane] * 18),
        "peers": lambda src, dst: "direct",
        "distances": lambda one, other: "SYS",
        "slot": Pcie(max_generation=5, max_lanes=16, generation=1, lanes=16),
    }
    return FakeDriver(**(known | changes))
