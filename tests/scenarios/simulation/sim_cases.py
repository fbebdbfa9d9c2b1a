"""Small configurations of the event loop, by hand or drawn: few workers, few requests, coarse times with many ties."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from scenarios.simulation import columns as col


def ints(values: Any) -> Any:
    return np.array(values, np.int64).reshape(np.shape(values) if len(np.shape(values)) > 1 else (-1,))


def offsets(groups: list[list[int]]) -> tuple[Any, Any]:
    """(offsets, all values) of groups."""
    return ints([0, *np.cumsum([len(g) for g in groups])]), ints([v for g in groups for v in g])


PLAIN_COST = {"FIXED": 5, "WC": 2, "W0": 7, "WR": 1, "HC": 1, "H0": 2, "ACP": 1, "ACD": 1, "AB": 2, "UP0": 1, "UP1": 1}


LATER_STAGE = ("SB", "WC", "W0", "WR", "HC", "H0", "ACP", "ACD", "AB", "ES", "EN", "EK")
"""What stages after the first one have of their own."""


def costs(n_workers: int, **given: int) -> Any:
    """Equal workers of one stage; names are those of the columns."""
    table = np.zeros((n_workers, col.COST_COLUMNS), np.int64)
    for name, value in (PLAIN_COST | {"DN0": 1, "DN1": 1} | given).items():
        table[:, getattr(col, name)] = value
    return table


def config(
    requests: list[tuple[int, int, int]], n_prefill: int = 1, n_decode: int = 1, *, cost: Any = None, q: Any = 1,
    blocks: Any = 1000, max_seqs: Any = 8, budget: Any = 16, block: int = 4, legs: Any = None, hashes: Any = None,
    outages: Any = (), domains: Any = None, windows: Any = None, **given: Any,
) -> col.Config:  # fmt: skip
    """`requests` are (arrival, prompt, out); `legs` of every pair [(fixed, each, q, links, ratios)].

    `windows`: the columns that windows and states give values to.
    """
    requests = sorted(requests, key=lambda one: one[0])
    both = n_decode == 0
    workers = n_prefill + n_decode
    kept = {"windows": [], "hold_windows": [], "hold_fixed": [0] * workers, "hold_each": [[0]] * workers,
            "knots": [], "leg_bends": None, "leg_steps": None, "step_knot": [], "step_chunk": [],
            "bent": 0}  # fmt: skip
    kept |= windows or {}
    legs = [(10, 3, 2, [0], [1024])] if legs is None else legs
    pair = np.full((workers, workers), -1, np.int64)
    pair[:n_prefill, n_prefill:] = 0
    hash_at, all_hashes = offsets(hashes or [[] for _ in requests])
    link_at, links = offsets([leg[3] for leg in legs])
    per_worker = {"q": q, "blocks": blocks, "max_seqs": max_seqs, "budget": budget}
    arrays = {
        name: np.full(workers, 0, np.int64) + ints([value] if np.isscalar(value) else value)
        for name, value in per_worker.items()
    }
    outages = sorted(outages)
    known = {
        "hash_tokens": 0, "by_blocks": 0, "share": col.QUEUE, "pull": 0, "layers": 0, "route_prefill": 0,
        "route_decode": 0,
    } | given  # fmt: skip
    return col.Config(
        arrival=ints([r[0] for r in requests]), prompt=ints([r[1] for r in requests]),
        out=ints([r[2] for r in requests]),
        hash_at=hash_at, hashes=all_hashes,
        role=ints([col.BOTH if both else col.PREFILL] * n_prefill + [col.DECODE] * n_decode),
        cost=costs(workers)[:, None] if cost is None else cost if cost.ndim == 3 else cost[:, None], **arrays,
        domain=ints(domains if domains is not None else [0] * workers),
        prefill_pool=ints(range(n_prefill)), decode_pool=ints(range(n_prefill, workers)),
        pair=pair, way_at=ints([0, len(legs)]), leg_q=ints([leg[2] for leg in legs]),
        leg_fixed=ints([leg[0] for leg in legs]), leg_each=ints([leg[1] for leg in legs]), link_at=link_at,
        **{name: np.array(kept.pop(name) or [[] for _ in legs], np.int64) for name in ("leg_bends", "leg_steps")},
        bent=kept.pop("bent"),
        **{name: ints(values) for name, values in kept.items()},
        leg_links=links, leg_ratio=ints([r for leg in legs for r in leg[4]]),
        outage_time=ints([o[0] for o in outages]), outage_up=ints([o[1] for o in outages]),
        outage_worker=ints([o[2] for o in outages]), n_links=1 + max((v for leg in legs for v in leg[3]), default=0),
        block=block, **known,
    )  # fmt: skip


@st.composite
def windowed(draw: st.DrawFn, workers: int, cost: Any) -> tuple[dict[str, Any], Any]:
    """(what windows and states give values to, costs with attention through windows and states)."""
    lengths = st.lists(st.integers(1, 24), max_size=2, unique=True).map(sorted)
    seen, kept, knots = draw(lengths), draw(lengths), draw(lengths)
    each = st.lists(st.integers(0, 4), min_size=len(kept) + 1, max_size=len(kept) + 1)
    rows = [cost]
    for number in [*range(len(seen)), *draw(st.lists(st.integers(0, len(seen)), max_size=1))]:
        row = np.zeros((workers, 1, col.COST_COLUMNS), np.int64)
        for name in ("ACP", "ACD", "AB"):
            row[:, 0, getattr(col, name)] = draw(st.lists(st.integers(0, 6), min_size=workers, max_size=workers))
        row[:, 0, col.WINDOW] = draw(st.sampled_from([0, number + 1])) if number < len(seen) else 0
        rows.append(row)
    table = np.concatenate(rows, axis=1)
    table[:, 0, col.SB] = draw(st.integers(0, 5))
    table[:, 0, col.WINDOW] = draw(st.integers(0, len(seen)))
    held = {"hold_fixed": draw(st.lists(st.integers(0, 9), min_size=workers, max_size=workers)),
            "hold_each": draw(st.lists(each, min_size=workers, max_size=workers))}  # fmt: skip
    chunks = draw(st.lists(st.tuples(st.integers(1, 24), st.integers(1, 8)), max_size=1))
    cut = {"step_knot": [knot for knot, _ in chunks], "step_chunk": [chunk for _, chunk in chunks]}
    return {"windows": seen, "hold_windows": kept, "knots": knots, "bent": 1, **held, **cut}, table


@st.composite
def configs(draw: st.DrawFn) -> col.Config:
    """Everything that the event loop knows, small."""
    n = draw(st.integers(1, 9))
    pools = draw(st.sampled_from([(1, 1), (2, 1), (1, 2), (2, 2), (1, 0), (2, 0)]))
    workers = sum(pools)
    requests = draw(
        st.lists(st.tuples(st.integers(0, 400), st.integers(1, 20), st.integers(1, 14)), min_size=n, max_size=n)
    )
    cost = costs(workers)
    for name in PLAIN_COST:
        cost[:, getattr(col, name)] = draw(st.lists(st.integers(0, 6), min_size=workers, max_size=workers))
    cost[:, col.FIXED] += 1
    cost = cost[:, None]
    experts = {"EACH": 2, "ES": 5, "EN": 9, "EK": 2} if draw(st.booleans()) else {}
    for name, most in experts.items():
        cost[:, 0, getattr(col, name)] = draw(st.lists(st.integers(0, most), min_size=workers, max_size=workers))
    if draw(st.booleans()):
        later = np.zeros_like(cost)
        for name in LATER_STAGE:
            later[:, 0, getattr(col, name)] = draw(st.lists(st.integers(0, 6), min_size=workers, max_size=workers))
        cost = np.concatenate([cost, later], axis=1)
    windows, cost = draw(windowed(workers, cost)) if draw(st.booleans()) else (None, cost)
    split, reuse = pools[1] > 0, windows is None and draw(st.booleans())
    share = draw(st.sampled_from([col.QUEUE, col.FAIR]))
    legs = draw(st.lists(
        st.tuples(st.integers(0, 50), st.integers(0, 9), st.integers(1, 3),
                  st.lists(st.integers(0, 2), min_size=1, max_size=2, unique=True)),
        min_size=1, max_size=2,
    ))  # fmt: skip
    legs = [
        (*leg, draw(st.lists(st.sampled_from([1024, 512, 300]), min_size=len(leg[3]), max_size=len(leg[3]))))
        for leg in legs
    ]
    if windows is not None:
        each = st.lists(st.integers(0, 5), min_size=len(windows["knots"]), max_size=len(windows["knots"]))
        windows["leg_bends"] = draw(st.lists(each, min_size=len(legs), max_size=len(legs)))
        windows["leg_steps"] = [[draw(st.integers(0, 5)) for _ in windows["step_knot"]] for _ in legs]
    layers = draw(st.sampled_from([0, 3])) if split and share == col.QUEUE and len(legs) == 1 else 0
    downs = draw(
        st.lists(
            st.tuples(st.integers(1, 500), st.integers(1, 200), st.integers(0, workers - 1)),
            max_size=2,
            unique_by=lambda o: o[2],
        )
    )
    outages = [row for at, gone, w in downs for row in ((at, 0, w), (at + gone, 1, w))]
    hashes = [
        draw(st.lists(st.integers(0, 5), unique=True, max_size=max(0, p // 4)))
        for _, p, _ in sorted(requests, key=lambda o: o[0])
    ]
    return config(
        requests, *pools, cost=cost, q=draw(st.lists(st.integers(1, 3), min_size=workers, max_size=workers)),
        blocks=draw(st.lists(st.integers(3, 14 if windows is None else 200), min_size=workers, max_size=workers)),
        windows=windows,
        max_seqs=draw(st.lists(st.integers(1, 4), min_size=workers, max_size=workers)),
        budget=draw(st.lists(st.integers(2, 12), min_size=workers, max_size=workers)),
        block=draw(st.sampled_from([2, 4])), legs=legs, outages=outages, hash_tokens=4 if reuse else 0,
        hashes=hashes if reuse else None, share=share, layers=layers, pull=draw(st.integers(0, 1)),
        by_blocks=draw(st.integers(0, 1)),
        domains=draw(st.lists(st.integers(0, 1), min_size=workers, max_size=workers)),
        route_prefill=draw(st.sampled_from([0, 1, 3] if reuse and split else [0, 1])),
        route_decode=draw(st.sampled_from([0, 1, 2])),
    )  # fmt: skip
