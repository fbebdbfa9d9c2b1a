"""`nvidia-smi topo -m` of every era, and what `-p2p` and `-mp` add in the same text -> one node.

NV# is a number of lanes; the other words say how far two cards lie apart on PCIe and nothing of peer access: that is
unknown unless a -p2p matrix says it. Nothing here states a memory or a rate.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from fleet.identity import MAX_INDEX
from fleet.machine import PeerAccess
from fleet.readers import Reading
from fleet.readers.building import Faults, Gpu, Pair, build_fleet, device_id, lines_of
from fleet.readers.smi_cards import listed_cards
from fleet.readers.smi_matrix import (
    UNKNOWN_WORDS,
    Matrix,
    find_matrices,
    gpu_number,
    lanes_of,
    shows_matrix,
)
from fleet.yaml_source import printable

NAME = "nvidia-smi"
MAX_CPU = 65535

_ROCM = re.compile(r"between two GPUs|ROCm System Management", re.I)
_ROW = re.compile(
    r"^[ \t]*GPU[0-9]{1,3}(?=[ \t])(?=[^\n]*[ \t](?:NV[0-9]{1,2}|PIX|PXB|PHB|NODE|SYS)[ \t\r\n])", re.ASCII | re.M
)
"""A row that rocm-smi never prints."""
_LIST = re.compile(r"[0-9]{1,5}(?:-[0-9]{1,5})?(?:,[0-9]{1,5}(?:-[0-9]{1,5})?)*,?", re.ASCII)
_LEGEND = re.compile(r"\b(NIC[0-9]{1,4})[ \t]*:[ \t\r\n]*([A-Za-z][A-Za-z0-9_.-]*)(?![A-Za-z0-9_.-]*[ \t]*:)", re.ASCII)
_SLICE = re.compile(r"^\s*MIG .*\(UUID: MIG-")


def matches(text: str) -> bool:
    """Whether some line is the header of a topology matrix. The tables of rocm-smi look alike and are not meant."""
    return shows_matrix(text) and (_ROCM.search(text) is None or _ROW.search(text) is not None)


def read(text: str, source: str, *, sku: str | None = None) -> Reading:
    """The node of a text. Raises DescriptionError: no matrix, cut or contradictory ones, unknown words."""
    faults = Faults(source)
    found = find_matrices(text, faults)
    if not found:
        faults.tell(
            0, "", "holds no topology matrix; looked for a line that names GPU0 and a row of words for each GPU"
        )
    faults.stop()
    links = [matrix for matrix in found if not matrix.is_p2p]
    grants = [matrix for matrix in found if matrix.is_p2p]
    _same_cards(found, faults)
    ways = _merged(links, faults)
    peers = _peers(grants, faults)
    gpus, notes = _cards(text, found, links, faults)
    faults.stop()
    warnings = _warnings(text, links, grants, ways)
    pairs = _pairs(found[0], ways, peers)
    fleet, told = build_fleet(NAME, source, gpus, pairs, sku=sku)
    notes |= _link_notes(found[0].gpus, links, ways)
    if grants:
        notes |= {"p2p": peers.words, "direct_peer": set(peers.words.values()) == {"OK"} if peers.words else None}
    return Reading(fleet=fleet, warnings=(*warnings, *told), notes=notes)


@dataclass(frozen=True, slots=True)
class _Way:
    """The word of an unordered pair, the word of its PCIe path where `-mp` shows it, and a line of it."""

    word: str
    path: str | None
    line: int


@dataclass(frozen=True, slots=True)
class _Peers:
    """The words of the -p2p matrices on reading and writing: shown (`GPU0-GPU1`), and by ordered pair."""

    words: dict[str, str]
    access: dict[tuple[str, str], PeerAccess]


def _same_cards(found: list[Matrix], faults: Faults) -> None:
    first = found[0]
    for other in found[1:]:
        if set(other.gpus) != set(first.gpus):
            message = f"names {_some(other.gpus)}, but the matrix of line {first.line} names {_some(first.gpus)}"
            faults.tell(other.line, "", f"{message}; give matrices of one machine")
    for name in first.gpus:
        if gpu_number(name) > MAX_INDEX:
            faults.tell(first.line, name, f"lies outside GPU0..GPU{MAX_INDEX}")


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _words(matrix: Matrix, faults: Faults) -> dict[tuple[str, str], str]:
    """The word of each unordered pair of columns. The two cells of a pair must agree."""
    words: dict[tuple[str, str], str] = {}
    for at, a in enumerate(matrix.columns):
        for b in matrix.columns[at + 1 :]:
            there, back = matrix.cells.get((a, b)), matrix.cells.get((b, a))
            told = [word for word in (there, back) if word is not None and word not in UNKNOWN_WORDS]
            if len(set(told)) > 1:
                message = f"is {there} in line {matrix.lines[a]} but {back} in line {matrix.lines[b]}"
                faults.tell(matrix.lines[b], f"{a}-{b}", f"{message}: a matrix is the same both ways")
            elif told:
                words[a, b] = told[0]
    return words


def _merged(links: list[Matrix], faults: Faults) -> dict[tuple[str, str], _Way]:
    """The words of all -m and -mp matrices. NV# beats the PCIe path, which only -mp shows beside it."""
    ways: dict[tuple[str, str], _Way] = {}
    for matrix in links:
        for pair, word in _words(matrix, faults).items():
            line = matrix.lines.get(pair[0], matrix.line)
            path = word if matrix.command == "mp" else None
            held = ways.get(pair) or ways.get(pair[::-1])
            key = pair if pair in ways or held is None else pair[::-1]
            if held is None or held.word == word:
                ways[key] = _Way(word, path or (held.path if held else None), line)
            elif lanes_of(word) is None and lanes_of(held.word) is not None:
                ways[key] = _Way(held.word, word, held.line)
            elif lanes_of(held.word) is None and lanes_of(word) is not None:
                ways[key] = _Way(word, held.word, line)
            else:
                message = f"is {held.word} in line {held.line} but {word} in line {line}"
                faults.tell(line, f"{pair[0]}-{pair[1]}", f"{message}: give matrices of one machine")
    return ways


def _peers(grants: list[Matrix], faults: Faults) -> _Peers:
    """Direct needs OK for reading and for writing. The matrices of NVLink (n), atomics (a), PCIe (p) do not decide."""
    words: dict[str, str] = {}
    access: dict[tuple[str, str], PeerAccess] = {}
    deciding = [matrix for matrix in grants if matrix.command in ("", "p2p") or set(matrix.command[4:]) & set("rw")]
    for matrix in deciding:
        for (a, b), word in matrix.cells.items():
            if a == b or word in UNKNOWN_WORDS:
                continue
            kind: PeerAccess = "direct" if word == "OK" else "unknown" if word == "U" else "staged"
            held = access.get((a, b))
            if held is None or held == "direct" or (held == "unknown" and kind == "staged"):
                access[a, b], words[f"{a}-{b}"] = kind, word
    return _Peers(words, access)


def _pairs(matrix: Matrix, ways: dict[tuple[str, str], _Way], peers: _Peers) -> list[Pair]:
    """The link of every two cards: without one, their copies would be taken for staged ones, which nobody says."""
    pairs = []
    for at, a in enumerate(matrix.gpus):
        for b in matrix.gpus[at + 1 :]:
            way = ways.get((a, b)) or ways.get((b, a))
            there, back = peers.access.get((a, b)), peers.access.get((b, a))
            lanes = None if way is None else lanes_of(way.word)
            default: PeerAccess = "unknown" if lanes is None else "direct"
            pairs.append(
                Pair(
                    a=device_id(gpu_number(a)), b=device_id(gpu_number(b)), kind="pcie" if lanes is None else "nvlink",
                    count=lanes or 1, rated=way is not None, line=matrix.lines[a] if way is None else way.line,
                    peer=there or default, peer_back=back or default,
                )
            )  # fmt: skip
    return pairs


def _cards(text: str, found: list[Matrix], links: list[Matrix], faults: Faults) -> tuple[list[Gpu], dict[str, Any]]:
    """The GPUs, and the notes on affinity, NICs and names."""
    first = (links or found)[0]
    cpu, numa, own = (_column(first, name, faults) for name in ("cpu affinity", "numa affinity", "gpu numa id"))
    listed = listed_cards(text, first.gpus, faults)
    gpus = []
    for name in first.gpus:
        near = numa[name] if numa else None
        nodes = _numbers(near) if near is not None else []
        card = listed.get(name)
        gpus.append(
            Gpu(
                index=gpu_number(name),
                line=first.lines[name],
                numa=nodes[0] if len(nodes) == 1 else None,
                pci=None if card is None else card.pci,
                uuid=None if card is None else card.uuid,
                product=None if card is None else card.name,
                vendor="10de",
            )
        )
    names = {name: card.name for name, card in listed.items() if card.name is not None}
    notes: dict[str, Any] = {
        "n_gpus": len(first.gpus),
        "n_nics": len(first.nics),
        "nic_names": list(first.nics),
        "nic_legend": _legend(text, first.nics),
        "cpu_affinity": cpu,
        "numa_affinity": numa and {name: None if value is None else _numbers(value) for name, value in numa.items()},
        "gpu_numa_id": own and {name: None if value is None else _numbers(value)[0] for name, value in own.items()},
    }
    return gpus, notes | ({"gpu_names": names} if names else {})


def _column(matrix: Matrix, column: str, faults: Faults) -> dict[str, str | None] | None:
    """The cells of an affinity column by GPU, None where unknown; None when the matrix has no such column."""
    if column not in matrix.tails:
        return None
    values = {name: matrix.affinity.get(name, {}).get(column) for name in matrix.gpus}
    for name, value in values.items():
        if value is not None and not _is_list(value):
            message = f"{column}: {printable(value)} is no list of numbers such as 0-3,8"
            faults.tell(matrix.lines[name], name, message)
    return {name: value if value is None or _is_list(value) else None for name, value in values.items()}


def _is_list(value: str) -> bool:
    if len(value) > 10_000 or not _LIST.fullmatch(value):
        return False
    bounds = [[int(end) for end in part.split("-")] for part in value.rstrip(",").split(",")]
    return all(part[0] <= part[-1] <= MAX_CPU for part in bounds)


def _numbers(value: str) -> list[int]:
    """`0,3-5` -> [0, 3, 4, 5]."""
    found: set[int] = set()
    for part in value.rstrip(",").split(","):
        ends = [int(end) for end in part.split("-")]
        found.update(range(ends[0], ends[-1] + 1))
    return sorted(found)


def _legend(text: str, nics: tuple[str, ...]) -> dict[str, str]:
    """Names of the NICs by column; a name may be wrapped onto the next line, or cut and then missing."""
    start = text.find("NIC Legend")
    found = _LEGEND.findall("\n".join(lines_of(text[start:]))) if start >= 0 else []
    return {nic: name for nic, name in found if nic in nics}


def _link_notes(gpus: tuple[str, ...], links: list[Matrix], ways: dict[tuple[str, str], _Way]) -> dict[str, Any]:
    """The words by pair, with the NICs that Fleet does not hold."""
    if not links:
        return {}
    nics = links[0].nics
    rows: list[dict[str, Any]] = []
    paths: dict[str, str] = {}
    between: dict[str, str] = {}
    near: dict[str, dict[str, str]] = {gpu: {} for gpu in gpus} if nics else {}
    for (a, b), way in ways.items():
        lanes = lanes_of(way.word)
        kind = "NVLINK" if lanes is not None else {"SOC": "SYS", "PSB": "PIX"}.get(way.word, way.word)
        if way.path is not None:
            paths[f"{a}-{b}"] = way.path
        if a in near and b in nics:
            near[a][b] = kind
        elif b in near and a in nics:
            near[b][a] = kind
        elif a in nics and b in nics:
            between[f"{a}-{b}"] = kind
        else:
            rows.append({"a": a, "b": b, "type": kind, "raw": way.word, "nvlinks": lanes})
    return {"gpu_links": rows, "gpu_nic_links": near, "nic_nic_links": between, "pcie_path": paths}


def _warnings(text: str, links: list[Matrix], grants: list[Matrix], ways: dict[tuple[str, str], _Way]) -> list[str]:
    told = []
    if not links:
        told.append("only -p2p is shown: it says which copies go direct, not over what; the links are taken as PCIe")
    elif all(matrix.command == "mp" for matrix in links):
        told.append("topo -mp shows the PCIe path only: cards joined by NVLink look as if they were not (give topo -m)")
    for matrix in links:
        absent = [nic for nic in matrix.nics if nic not in matrix.lines]
        if absent:
            told.append(
                f"line {matrix.line}: the rows of {_some(tuple(absent))} are missing, so what joins them is unknown"
            )
        odd = [name for name in matrix.tails if name not in ("cpu affinity", "numa affinity", "gpu numa id")]
        told += [f"line {matrix.line}: column {printable(name)} is not read" for name in odd]
    pairs = [(a, b) for matrix in links[:1] for at, a in enumerate(matrix.gpus) for b in matrix.gpus[at + 1 :]]
    unknown = tuple(f"{a}-{b}" for a, b in pairs if (a, b) not in ways and (b, a) not in ways)
    if unknown:
        told.append(f"the link of {_some(unknown)} is not shown: taken as PCIe without a rate, peer access unknown")
    if (
        links
        and not grants
        and any(lanes_of(way.word) is None and {a, b} <= set(links[0].gpus) for (a, b), way in ways.items())
    ):
        told.append(
            "topo -m does not say which copies over PCIe go direct: put the print of nvidia-smi topo -p2p r below it"
        )
    if any(_SLICE.match(line) for line in lines_of(text)):
        told.append("the text lists MIG slices: capacity and links here are those of whole cards")
    return told
