"""Requests for the executor's tests: orders that the planner admits, weights made in memory, one call to run them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from executor.facts import RunFacts
from executor.run import Executor
from executor.weights import Weights, open_weights
from fleet.checkpoints import seeded_model
from fleet.machine import Fleet, Link
from fleet.model import Model
from fleet.placement import Placement
from planner.admit import Admission, Ask, admit
from planner.orders import Orders
from planner.plan import make_orders
from planner.request import Request
from tests.planner.fleets import device, host_links, pair

GOLDEN = Path(__file__).parents[3] / "shared" / "data" / "llama2c_golden"
GOLDEN_ABSENT = "shared/data/llama2c_golden is not beside the project"

SPLIT, BACK, ORACLE = ("gpu:0", "gpu:1"), ("gpu:1", "gpu:0"), ("gpu:0", "gpu:0")
PROMPT = (1, 35, 87, 104, 101, 35, 122, 100, 124, 101, 108, 111, 111, 35)
"""Fourteen ids of the embedded model's vocabulary."""


def fleet(peer_access: str = "direct", granule: int = 4096) -> Fleet:
    """gpu:0, gpu:1 and cpu:0 with host links and links between all of them."""
    gpus = pair(peer_access, granule=granule)
    cpu = device("cpu:0", granule=granule, topology_id=0)
    access: Any = peer_access
    links = [*gpus.links, *host_links("cpu:0")]
    for gpu in ("gpu:0", "gpu:1"):
        links += [Link(src=a, dst=b, kind="pcie", peer_access=access) for a, b in ((gpu, "cpu:0"), ("cpu:0", gpu))]
    return replace(gpus, devices=(*gpus.devices, cpu), links=tuple(links))


def admitted(
    model: Model,
    ids: tuple[int, ...] = PROMPT,
    *,
    devices: tuple[str, str] = SPLIT,
    peer_access: str = "direct",
    granule: int = 4096,
    **request: Any,
) -> Admission:
    """The admission of a request of these ids."""
    asked = Request(prompt_ids=ids, **request)
    placement = Placement(prefill=devices[0], decode=devices[1])
    admission = admit(Ask(fleet=fleet(peer_access, granule), model=model, request=asked, placement=placement))
    assert admission.verdict == "admitted", admission.reasons
    return admission


def orders_for(model: Model, ids: tuple[int, ...] = PROMPT, **request: Any) -> Orders:
    """The orders of an admitted request; words as `admitted` and `Request` know them."""
    return make_orders(admitted(model, ids, **request))


def run_once(orders: Orders, weights: Weights, **options: Any) -> RunFacts:
    """One request on a machine of its own."""
    with Executor(orders, weights, **options) as executor:
        return executor.run()


@cache
def embedded() -> Weights:
    """The embedded model's weights, made once."""
    return open_weights(seeded_model())


def random_weights(model: Model, seed: int = 0) -> Weights:
    """Small random values for every tensor of a model, from a seed."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for spec in model.tensors:
        values = rng.standard_normal(spec.shape, dtype=np.float32)
        tensors[spec.name] = np.ascontiguousarray(values * np.float32(0.2 if spec.role != "norm" else 1.0))
    return Weights(model, tensors)
