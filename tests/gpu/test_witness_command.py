"""`kvwaybill witness` and `calibrate` where there is no GPU, and what a trace says beside a plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from executor.cuda.rates import fit_line, measure_edges, measure_pair
from executor.observers.cupti import LOOK, CopyRecord, TraceReport
from executor.observers.shim import summed
from fleet.errors import DescriptionError
from planner.plan import make_orders
from scenarios.calibration import calibrate
from scenarios.witness_tool import against_plan, witness_program
from tests.executor.requests import admitted, embedded, run_once
from tests.gpu.fake import on
from tests.gpu.fake_driver import FakeDriver, FakeTrace, uuid_of


def _copy(kind: str, nbytes: int, src: int | None, dst: int | None) -> CopyRecord:
    return CopyRecord(None, kind, nbytes, src, dst, "pinned", "device", 5, 9)


def _seen(*records: CopyRecord) -> dict[str, Any]:
    devices = [{"ordinal": 1 - n, "uuid": uuid_of(n).upper().replace("GPU", "GPU"), "pci": None} for n in (0, 1)]
    return summed(TraceReport(records=list(records))) | {"devices": devices}


def _plan(*edges: tuple[str, str, str, int, int]) -> dict[str, Any]:
    devices = [{"id": f"gpu:{n}", "kind": "gpu", "index": n, "uuid": uuid_of(n)} for n in (0, 1)]
    names = ("src", "dst", "kind", "bytes", "copies")
    return {"orders": {"devices": devices}, "edges": [dict(zip(names, edge, strict=True)) for edge in edges]}


def test_a_trace_is_set_beside_the_planned_cards_not_beside_ordinals() -> None:
    # the planned gpu:0 is the runtime's device 1
    seen = _seen(_copy("p2p", 100, 1, 0), _copy("p2p", 100, 1, 0), _copy("h2d", 8, None, 1), _copy("d2h", 4, 0, None))
    plan = _plan(("gpu:0", "gpu:1", "p2p", 200, 2), ("host", "gpu:0", "h2d", 9, 1), ("gpu:0", "host", "d2h", 4, 1))
    rows = {(row["src"], row["dst"], row["kind"]): row["verdict"] for row in against_plan(seen, plan)}
    assert rows == {
        ("gpu:0", "gpu:1", "p2p"): "match",
        ("host", "gpu:0", "h2d"): "mismatch",
        ("gpu:0", "host", "d2h"): "missing",
        ("cuda:0", "host", "d2h"): "unplanned",
    }


def test_copies_that_a_run_makes_to_look_are_listed_and_of_no_edge() -> None:
    seen = _seen(replace(_copy("d2h", 4, 1, None), tag=16), replace(_copy("d2h", 640, 1, None), tag=LOOK))
    (row,) = against_plan(seen, _plan(("gpu:0", "host", "d2h", 4, 1)))
    assert row["verdict"] == "match"
    assert [(copy["bytes"], copy.get("looks")) for copy in seen["copies"]] == [(4, None), (640, True)]


def test_a_run_under_another_tracer_tells_it_which_copies_are_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver(trace=FakeTrace())
    driver.outer = driver.seen
    monkeypatch.setattr(driver, "trace", lambda: "kvwaybill witness looks at this process already")
    admission = admitted(embedded().model, steps=24)
    with on(driver, monkeypatch) as backend:
        facts = run_once(make_orders(admission), embedded(), backend=backend)
    assert facts.driver_seen is None
    edges = {(e["src"], e["dst"]): (e["bytes"], e["copies"]) for e in facts.edges}
    looks = [record for record in driver.seen.records if record.tag == LOOK]
    down = [r for r in driver.seen.records if r.tag != LOOK and (r.src, r.dst) == (1, None)]
    assert (sum(r.nbytes for r in down), len(down)) == edges["gpu:1", "host"]
    assert {r.kind for r in looks} == {"d2h"}
    assert max(r.nbytes for r in looks) <= 32 * max(embedded().model.n_layers, 32), "no cache came down to be hashed"


def test_a_program_without_a_driver_runs_and_is_not_witnessed(capfd: pytest.CaptureFixture[str]) -> None:
    seen = witness_program(["python", "-c", "import sys; print(sys.argv[1:]); raise SystemExit(3)", "one"])
    assert seen["program_code"] == 3
    assert capfd.readouterr().out == "['one']\n"
    if seen["witness"] == "none":
        assert "CUPTI" in seen["why_not"]


def test_an_error_of_the_program_is_shown_alone(capfd: pytest.CaptureFixture[str]) -> None:
    seen = witness_program(["python", "-c", "raise KeyError('theirs')"])
    assert seen["program_code"] == 1
    told = capfd.readouterr().err
    assert "KeyError: 'theirs'" in told
    assert "Cupti" not in told
    assert witness_program(["python", "nowhere.py"])["program_code"] == 2
    assert capfd.readouterr().err == "can't open file 'nowhere.py': no such file\n"


@pytest.mark.parametrize("command", [[], ["ls"], ["python"], ["/nowhere/python3", "x.py"]])
def test_only_python_programs_are_taken(command: list[str]) -> None:
    with pytest.raises(DescriptionError, match=r"COMMAND"):
        witness_program(command)


def test_a_line_is_fitted_and_scored_on_sizes_that_it_was_not_shown() -> None:
    sizes = [1 << power for power in range(10, 24, 2)]
    fit = fit_line(sizes, [5e-6 + size / 5e10 for size in sizes])
    assert fit.line.alpha_s == pytest.approx(5e-6)
    assert fit.line.beta_bytes_per_s == pytest.approx(5e10)
    assert fit.is_line
    bent = fit_line(sizes, [5e-6 + size / (5e10 if size < 1 << 18 else 5e9) for size in sizes])
    assert not bent.is_line
    with pytest.raises(ValueError, match="four"):
        fit_line(sizes[:3], [1.0, 2.0, 3.0])


def test_measuring_gives_everything_back_and_pageable_memory_is_no_line() -> None:
    driver = FakeDriver(cards=2, trace="none")
    sizes = [1 << power for power in range(12, 22, 2)]
    found = measure_edges(driver, 0, sizes) | measure_pair(driver, 0, 1, sizes)
    assert found["h2d_pageable"]["not_a_line"] is True
    assert found["both_at_once"]["copies_each_way"] == 16
    assert {"peer_0_to_1", "peer_1_to_0"} <= set(found)
    assert (driver.held, driver.now) == (0, 0)


def test_one_card_calibrates_no_edge_between_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scenarios.calibration._SIZES", tuple(1 << power for power in range(12, 22, 2)))
    kinds = {}
    for cards in (1, 2):
        with on(FakeDriver(cards=cards, trace="none"), monkeypatch):
            kinds[cards] = {(edge["kind"], edge["src"]) for edge in calibrate("cupy")["edges"]}
    assert ("p2p", "gpu:0") not in kinds[1]
    assert {("p2p", "gpu:0"), ("p2p", "gpu:1")} <= kinds[2]
