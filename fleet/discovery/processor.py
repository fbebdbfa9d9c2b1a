"""The processor and its memory, as `/proc` and `/sys` tell them: model, sockets, NUMA nodes, bytes, and which machine.

A machine is named by a keyed hash of its machine-id, which is itself never handed on (machine-id(5) calls it
confidential): equal on one machine, of no use elsewhere.
"""

from __future__ import annotations

import hashlib
import hmac
import platform
import re
from collections.abc import Collection
from dataclasses import dataclass

from fleet.discovery.tree import Tree, numbers_of

__all__ = [
    "Memory",
    "NumaNode",
    "Processor",
    "machine_hash",
    "model_name",
    "read_memory",
    "read_processor",
    "socket_of",
]

_MACHINE_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)
_PURPOSE = b"kvwaybill physical device 1"
_CPU = re.compile(r"cpu([0-9]{1,6})", re.ASCII)
_NODE = re.compile(r"node([0-9]{1,6})", re.ASCII)
_KIB = re.compile(r"(?:Node\s+[0-9]+\s+)?MemTotal:\s*([0-9]{1,15})\s*kB", re.ASCII)
_ARM_PARTS = {
    ("0x41", "0xd0c"): "Arm Neoverse N1",
    ("0x41", "0xd40"): "Arm Neoverse V1",
    ("0x41", "0xd4f"): "Arm Neoverse V2",
}
"""Implementer and part of MIDR_EL1, from Arm's technical reference manuals: these systems print no model name."""
_ODD_SHARE = 100
"""Two figures of one memory that differ by more than 1/100 contradict each other."""
_NO_LIMIT = 2**60
"""cgroup v1 writes `no limit` as the largest multiple of a page in 63 bits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NumaNode:
    """A NUMA node: its processors (none on a node that is memory alone) and bytes, None = not told."""

    number: int
    cpus: tuple[int, ...]
    nbytes: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Processor:
    """Sockets and NUMA nodes are None where the system does not tell them; `cpus` is the number of logical ones."""

    model: str | None
    arch: str | None
    sockets: int | None
    nodes: tuple[NumaNode, ...] | None
    cpus: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Bytes of host memory that a program here may have, and what that figure was read from."""

    nbytes: int
    source: str


def machine_hash(root: str = "/") -> str | None:
    """32 hexadecimal digits that are equal for all devices of one machine; None where it has no machine-id."""
    tree = Tree(root)
    for place in (("etc", "machine-id"), ("var", "lib", "dbus", "machine-id")):
        text = (tree.text(*place) or "").lower()
        if _MACHINE_ID.fullmatch(text) and text != "0" * 32:
            return hmac.new(bytes.fromhex(text), _PURPOSE, hashlib.sha256).hexdigest()[:32]
    return None


def socket_of(cpus: Collection[int], root: str = "/") -> int | None:
    """The socket on which all these logical processors lie; None where they lie on several, or one is not told."""
    found = {_package(Tree(root), cpu) for cpu in cpus}
    return found.pop() if len(found) == 1 else None


def _package(tree: Tree, cpu: int) -> int | None:
    number = tree.number("sys", "devices", "system", "cpu", f"cpu{cpu}", "topology", "physical_package_id")
    return number if number is not None and number >= 0 else None  # firmware without a topology gives -1


def model_name(root: str = "/") -> str | None:
    """The model of the processor as the kernel names it, an ARM part by its number; None where neither is told."""
    return _model(_cpuinfo(Tree(root)))


def _cpuinfo(tree: Tree) -> list[tuple[str, str]]:
    lines = (tree.text("proc", "cpuinfo") or "").splitlines()
    return [(key.strip().lower(), value.strip()) for key, _, value in (line.partition(":") for line in lines)]


def _model(rows: list[tuple[str, str]]) -> str | None:
    first: dict[str, str] = {}
    for key, value in rows:
        first.setdefault(key, value)
    for key in ("model name", "cpu model", "hardware"):
        if first.get(key):
            return " ".join(first[key].split())
    implementer, part = first.get("cpu implementer"), first.get("cpu part")
    if implementer and part:
        named = _ARM_PARTS.get((implementer.lower(), part.lower()))
        return named or f"ARM implementer {implementer} part {part}"
    return None


def read_processor(root: str = "/") -> Processor:
    """What is told of the processor."""
    tree = Tree(root)
    rows = _cpuinfo(tree)
    online = numbers_of(tree.text("sys", "devices", "system", "cpu", "online"))
    if online is None:
        online = [int(m[1]) for name in tree.names("sys", "devices", "system", "cpu") if (m := _CPU.fullmatch(name))]
    packages = {_package(tree, cpu) for cpu in online}
    if not packages or None in packages:
        packages = {int(value) for key, value in rows if key == "physical id" and value.isdigit()} or {None}
    return Processor(
        model=_model(rows),
        arch=_arch(rows, tree),
        sockets=None if None in packages else len(packages),
        nodes=_nodes(tree),
        cpus=len(online) or sum(key == "processor" for key, _ in rows) or None,
    )


def _arch(rows: list[tuple[str, str]], tree: Tree) -> str | None:
    """This machine's own; of another's tree what only one architecture writes into cpuinfo, else None."""
    if tree.root == "/":
        return platform.machine() or None
    words = dict(rows)
    if "cpu implementer" in words:
        return "aarch64"
    return "x86_64" if words.get("vendor_id") in ("GenuineIntel", "AuthenticAMD") else None


def _nodes(tree: Tree) -> tuple[NumaNode, ...] | None:
    place = ("sys", "devices", "system", "node")
    numbers = sorted(int(match[1]) for name in tree.names(*place) if (match := _NODE.fullmatch(name)))
    if not numbers:
        return None
    return tuple(
        NumaNode(
            number=number,
            cpus=tuple(numbers_of(tree.text(*place, f"node{number}", "cpulist")) or ()),
            nbytes=_mem_total(tree.text(*place, f"node{number}", "meminfo")),
        )
        for number in numbers
    )


def _mem_total(text: str | None) -> int | None:
    found = _KIB.search(text or "")
    return int(found[1]) * 1024 if found else None


def read_memory(root: str = "/") -> tuple[Memory | None, list[str]]:
    """(host memory for programs here, what is to be said of it): the least of what the kernel has and a group may use.

    Memory of NUMA nodes without processors (that of a GPU, or of an expander) is not host memory and is taken off.
    """
    tree = Tree(root)
    total = _mem_total(tree.text("proc", "meminfo"))
    told: list[str] = []
    if total is None:
        return None, ["/proc/meminfo does not tell the memory of the host: unknown"]
    source = "MemTotal of /proc/meminfo"
    nodes = _nodes(tree) or ()
    lone = [node for node in nodes if not node.cpus and node.nbytes]
    if lone and any(node.cpus for node in nodes):
        total -= sum(node.nbytes or 0 for node in lone)
        numbers = ", ".join(str(node.number) for node in lone)
        told.append(f"memory of NUMA node {numbers}, which has no processor, is not counted as the host's")
        source = "MemTotal of /proc/meminfo less nodes without processors"
    spread = [node.nbytes for node in nodes if node.cpus]
    if spread and None not in spread:
        summed = sum(nbytes or 0 for nbytes in spread)
        if abs(summed - total) * _ODD_SHARE > total:
            told.append(f"/proc/meminfo tells {total:,} B, the NUMA nodes {summed:,} B together; the former is taken")
    limit = _group_limit(tree)
    if limit is not None and limit < total:
        told.append(f"a control group limits programs here to {limit:,} B of the {total:,} B of the host")
        total, source = limit, "memory limit of the control group"
    return (Memory(nbytes=total, source=source), told) if total > 0 else (None, told)


def _group_limit(tree: Tree) -> int | None:
    """The least memory limit of this process's control groups, v2 or v1; None where there is none."""
    limits = []
    for line in (tree.text("proc", "self", "cgroup") or "").splitlines():
        parts = line.split(":", 2)
        if len(parts) != 3 or not parts[2].startswith("/"):
            continue
        if not parts[1]:
            limits += _limits(tree, ("sys", "fs", "cgroup"), parts[2], "memory.max")
        elif "memory" in parts[1].split(","):
            limits += _limits(tree, ("sys", "fs", "cgroup", "memory"), parts[2], "memory.limit_in_bytes")
    return min(limits, default=None)


def _limits(tree: Tree, top: tuple[str, ...], group: str, name: str) -> list[int]:
    steps = [step for step in group.split("/") if step not in ("", ".", "..")]
    found = [tree.number(*top, *steps[:depth], name) for depth in range(len(steps) + 1)]
    return [limit for limit in found if limit is not None and 0 < limit < _NO_LIMIT]
