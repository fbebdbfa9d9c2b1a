"""What is drawn: boxes and lines, without a place. Every format is written from these, so that all say the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Role = Literal["prefill", "decode", "both"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Box:
    """A host, switch, NIC or device, or the first of `count` that are alike and drawn as one.

    `name` is the id of the first. `rank` orders the layers from top to bottom. `group` is what the box is framed with.
    """

    name: str
    kind: Literal["host", "switch", "nic", "device"]
    group: str
    rank: tuple[int, int]
    lines: tuple[str, ...]
    title: str
    count: int = 1
    role: Role | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A drawn line: one one-way link, or several of equal figures between the same boxes. `links` says how many.

    `both`: it also stands for as many links of equal figures the other way. `words` is its label, `key` the letter of
    its kind in the legend, `kv` what the handoff carries over it. `links` is 0 for a handoff that no link carries.
    """

    src: str
    dst: str
    kind: str
    links: int
    both: bool
    words: str
    title: str
    key: str
    priced: bool
    kv: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A line of the legend: all links of one kind and equal figures."""

    key: str
    kind: str
    words: str
    priced: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """All that a picture says. `notes` are sentences below the legend; `frames` the words of each group."""

    heading: str
    under: str
    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]
    legend: tuple[Entry, ...]
    notes: tuple[str, ...]
    frames: dict[str, str]
    collapsed: bool = False
