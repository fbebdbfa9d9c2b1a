"""A profile beside a plan: exact by kind for our own plans; of an engine's plan the handoff alone is judged."""

from __future__ import annotations

import pytest

from fleet.errors import DescriptionError
from scenarios.observations import Interval, Observation, Reading
from scenarios.observations.comparing import compare_observation


def plan(engine=None):
    edges = [
        {"src": "gpu:0", "dst": "gpu:1", "kind": "p2p", "bytes": 4096, "copies": 4},
        {"src": "host", "dst": "gpu:0", "kind": "h2d", "bytes": 100, "copies": 2},
    ]
    handoff = {"kind": "p2p", "legs": [{"src": "gpu:0", "dst": "gpu:1", "kind": "p2p"}]}
    return {"verdict": "admitted", "edges": edges, "handoff": handoff, "transfer": {"engine": engine}}


def profile(**kinds):
    """Kind -> (bytes, copies)."""
    told = [
        Observation(source="x", engine="nsight", kind=kind, bytes=Interval.exact(size), transfers=Interval.exact(count))
        for kind, (size, count) in kinds.items()
    ]
    return Reading(format="profile", engine="nsight", observations=tuple(told), blind=("RDMA",))


def verdicts(document):
    return {row["kind"]: row["verdict"] for row in document["rows"]}


def test_equal_bytes_and_copies_of_every_kind_are_equal():
    document = compare_observation(plan(), profile(p2p=(4096, 4), h2d=(100, 2)))
    assert (document["verdict"], verdicts(document)) == ("equal", {"h2d": "match", "p2p": "match"})


@pytest.mark.parametrize(
    ("seen", "kind", "verdict"),
    [
        ({"p2p": (4095, 4), "h2d": (100, 2)}, "p2p", "mismatch"),
        ({"p2p": (4096, 5), "h2d": (100, 2)}, "p2p", "mismatch"),
        ({"p2p": (4096, 4), "h2d": (100, 2), "d2h": (1, 1)}, "d2h", "unplanned"),
    ],
)
def test_a_byte_a_copy_or_a_kind_too_many_differs(seen, kind, verdict):
    document = compare_observation(plan(), profile(**seen))
    assert (document["verdict"], verdicts(document)[kind]) == ("different", verdict)


def test_nothing_recorded_proves_nothing():
    document = compare_observation(plan(), profile(h2d=(100, 2)))
    assert (document["verdict"], verdicts(document)["p2p"]) == ("inconclusive", "unwitnessed")


def test_of_an_engine_the_handoff_alone_is_judged_and_its_requests_counted():
    seen = profile(p2p=(8192, 99), h2d=(123456, 7))
    document = compare_observation(plan("vllm-nixl"), seen, requests=2)
    assert (document["verdict"], verdicts(document)) == ("equal", {"h2d": "unwitnessed", "p2p": "match"})
    assert compare_observation(plan("vllm-nixl"), seen)["verdict"] == "different"


def test_bytes_beyond_63_bits_are_told():
    with pytest.raises(DescriptionError, match="no bytes that anything moved"):
        compare_observation(plan(), profile(p2p=(2**63, 4)))
