"""The command line in process, and small fleets as files: what the tests of commands share."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from scenarios.cli.__main__ import main

Document = dict[str, Any]
MIB = 2**20


@dataclass(frozen=True)
class Answer:
    """How one command line ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Document:
        """The result of `-o json`."""
        document: Document = json.loads(self.out)
        return document


Ask = Callable[..., Answer]


def asker(capfd: pytest.CaptureFixture[str]) -> Ask:
    """A function that runs `kvwaybill ARGUMENTS` in this process and holds the frame to its promises."""

    def ask(*arguments: str | Path) -> Answer:
        capfd.readouterr()
        code = main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        assert "Traceback" not in out + err
        if code in (2, 4):
            assert err, "an error without a word"
        return Answer(code, out, err)

    return ask


def link(src: str, dst: str, **more: Any) -> Document:
    """A one-way link, rated."""
    return {"from": src, "to": dst, "kind": "pcie", "bandwidth": "50 GB/s", "latency": "5 us"} | more


def fleet(
    capacities: list[str] | str = "64 MiB",
    *,
    peer: str | None = "direct",
    pool: str | None = None,
    utilization: str = "1",
) -> Document:
    """A fleet as its file says it: gpu:0, gpu:1 ... on one host, each linked with it both ways, peers in a row.

    `capacities`: one of each device, or one that two devices share through their SKU. `peer` None: no peer links.
    """
    shared = isinstance(capacities, str)
    count = 2 if shared else len(capacities)
    memory = [{"name": "hbm", "capacity": capacities if shared else "1 GiB", "granule": "4 KiB"}]
    devices: list[Document] = [{"id": f"gpu:{index}", "sku": "card"} for index in range(count)]
    for device, capacity in zip(devices, [] if shared else capacities, strict=False):
        device["memories"] = [{"name": "hbm", "capacity": capacity, "granule": "4 KiB"}]
    links = [link(*ends) for index in range(count) for ends in (("host", f"gpu:{index}"), (f"gpu:{index}", "host"))]
    if peer is not None:
        pairs = [(f"gpu:{a}", f"gpu:{b}") for a in range(count) for b in range(count) if a != b]
        links += [link(*ends, peer_access=peer) for ends in pairs]
    return {
        "schema": "kvwaybill/fleet/1",
        "name": "made",
        "skus": {"card": {"kind": "gpu", "memories": memory, "runtime": "0 B"}},
        "hosts": [{"id": "host"} | ({} if pool is None else {"pinned_pool": pool})],
        "devices": devices,
        "links": links,
        "budget": {"utilization": utilization, "reserve": "0 B"},
    }


def without(described: Document, *ends: tuple[str, str]) -> Document:
    """The fleet less these links."""
    return described | {"links": [each for each in described["links"] if (each["from"], each["to"]) not in ends]}


def write_json(path: Path, document: Document) -> Path:
    """JSON is YAML too: fleet and scenario files can be written like this."""
    path.write_text(json.dumps(document, indent=1))
    return path
