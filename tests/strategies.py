"""Hypothesis strategies that tests of several rooms share."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import strategies as st

from fleet.units import MAX_FIGURE, format_flops, format_rate, format_seconds, write_bytes

figures = st.integers(1, MAX_FIGURE)
latencies = st.integers(0, 10**15 - 1)
prose = st.text(st.characters(blacklist_categories=["Cc", "Cs", "Cn"]), min_size=1, max_size=20)


@st.composite
def figure(draw: st.DrawFn, value: int, text: str, smallest_unit: str) -> Any:
    """One of the ways in which a fleet file writes the figure `value`, whose shortest exact form is `text`."""
    plain = draw(st.sampled_from([text, f"{value} {smallest_unit}"]))
    number, unit = plain.split(" ")
    row = draw(st.sampled_from([{"value": plain}, {"value": number, "unit": unit}]))
    row = {**row, "provenance": draw(st.sampled_from(["spec", "measured", "policy"])), "source": draw(prose)}
    if draw(st.booleans()):
        seen = {"value": plain, "tool": draw(prose), "date": "2026-01-31"}
        row = {"declared": row, "observed": seen | ({"error": "0.125"} if draw(st.booleans()) else {})}
    return row


@st.composite
def _sizes(draw: st.DrawFn) -> Any:
    value = draw(figures)
    return draw(st.one_of(figure(value, write_bytes(value), "B"), st.none(), st.just("unknown")))


@st.composite
def _rates(draw: st.DrawFn) -> Any:
    value = draw(figures)
    return draw(st.one_of(figure(value, format_rate(value), "B/s"), st.none()))


@st.composite
def _times(draw: st.DrawFn) -> Any:
    value = draw(latencies)
    return draw(st.one_of(figure(value, format_seconds(value), "ps"), st.none()))


@st.composite
def fleet_files(draw: st.DrawFn) -> dict[str, Any]:
    """The data of a good fleet file: one or two hosts, up to four devices, some links."""
    hosts = draw(st.sampled_from([["host"], ["node0/host", "node1/host"]]))
    count = draw(st.integers(1, 4))
    memory = {"name": "hbm", "capacity": draw(_sizes()), "bandwidth": draw(_rates()), "granule": draw(_sizes())}
    second = {"name": "lpddr", "role": draw(prose)}
    skus = {"a-card": {"kind": "gpu", "memories": [memory, second], "default_memory": "hbm", "runtime": draw(_sizes())}}
    if draw(st.booleans()):
        skus["a-card"]["compute"] = {"bf16": draw(figures.flatmap(lambda v: figure(v, format_flops(v), "FLOP/s")))}
    devices = [{"id": f"gpu:{i}", "sku": "a-card", "host": draw(st.sampled_from(hosts))} for i in range(count)]
    names = [device["id"] for device in devices]
    pairs = draw(st.lists(st.permutations([*names, *hosts]).map(lambda p: tuple(p[:2])), unique=True, max_size=5))
    links = []
    for src, dst in pairs:
        row: dict[str, Any] = {"from": src, "to": dst, "kind": "pcie", "count": str(draw(st.integers(1, 18)))}
        row |= {"bandwidth": draw(_rates()), "latency": draw(_times())}
        if src not in hosts and dst not in hosts:
            row["peer_access"] = draw(st.sampled_from(["direct", "staged", "unknown", None]))
        links.append(row)
    share = draw(st.integers(1, 10**12))
    return {
        "schema": "kvwaybill/fleet/1",
        "name": "drawn",
        "label": draw(st.none() | prose),
        "skus": skus,
        "hosts": [{"id": host, "pinned_pool": draw(_sizes())} for host in hosts],
        "devices": devices,
        "links": links,
        "budget": {"utilization": f"{share // 10**12}.{share % 10**12:012d}", "reserve": write_bytes(draw(figures))},
    }


def written(data: Any, shuffle: random.Random | None = None, depth: int = 0) -> str:
    """`data` as YAML flow text over several lines; keys and rows in another order under `shuffle`."""
    pad = "  " * (depth + 1)
    if isinstance(data, dict):
        keys = list(data)
        if shuffle is not None:
            shuffle.shuffle(keys)
        inner = [f"{pad}{_quoted(key)}: {written(data[key], shuffle, depth + 1)}" for key in keys]
        return "{\n" + f",{_comment(shuffle)}\n".join(inner) + "\n" + "  " * depth + "}"
    if isinstance(data, list):
        rows = list(data)
        if shuffle is not None:
            shuffle.shuffle(rows)
        return "[" + ", ".join(written(row, shuffle, depth + 1) for row in rows) + "]"
    return "null" if data is None else _quoted(data)


def _comment(shuffle: random.Random | None) -> str:
    return "" if shuffle is None or shuffle.random() < 0.5 else " # noise"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


json_junk = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.just(2**62), st.just(1.5), st.text(max_size=3), st.just([]),
    st.just({}), st.just([None]), st.just({"a": None}), st.just("/dev/zero"), st.just(["gpu:0"]), st.just("blocks:0"),
)  # fmt: skip
"""What may stand in a place of a JSON document where something else belongs."""
