"""Plan with run, plan with plan, run with run: equal documents are equal, and any single changed figure is not."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.errors import DescriptionError
from scenarios.compare import compare, verdict_of
from tests.scenarios.made import check, edges_of, failed, plan, run_of, signed

CASES: dict[str, dict[str, Any]] = {
    "direct": {},
    "host": {"attention": "host"},
    "staged": {"fleet": "two-gpu-staged"},
    "oracle": {"fleet": "one-gpu", "decode": "gpu:0"},
    "blocks": {"kv_extent": "blocks:4"},
    "allocated": {"kv_extent": "allocated"},
    "unlike": {"fleet": "gpu-and-cpu", "decode": "cpu:0"},
    "host staged": {"fleet": "two-gpu-staged", "attention": "host"},
    "chunked": {"prefill_chunk": 4},
}


def figures_in(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all byte figures and copies below rows, edges, handoff and memory."""
    found = []
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in items:
        if isinstance(value, (dict, list)):
            found += figures_in(value, (*path, key))
        elif type(value) is int and (str(key).endswith(("bytes", "copies")) or "resident" in path):
            found.append((*path, key))
    return found


def changed_at(document: Any, path: tuple[Any, ...], by: int) -> Any:
    changed = copy.deepcopy(document)
    at = changed
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = max(0, at[path[-1]] + by) if at[path[-1]] + by != at[path[-1]] else at[path[-1]]
    return changed


@pytest.mark.parametrize("words", CASES.values(), ids=CASES)
def test_a_faultless_run_equals_its_plan(words: dict[str, Any]) -> None:
    planned = plan(**words)
    comparison = compare(planned, run_of(planned))
    assert comparison["verdict"] == "equal", comparison["checks"]
    assert {row["verdict"] for row in comparison["rows"]} == {"match", "unwitnessed"}
    assert all(row["difference"] == 0 for row in comparison["rows"])


@pytest.mark.parametrize("words", CASES.values(), ids=CASES)
def test_equal_documents_are_equal(words: dict[str, Any]) -> None:
    planned = plan(**words)
    run = run_of(planned)
    for document in (planned, run):
        comparison = compare(document, copy.deepcopy(document))
        assert comparison["verdict"] == "equal"
        assert {row["verdict"] for row in comparison["rows"]} == {"match"}
        assert {row["witness"] for row in comparison["rows"]} == {"none"}


@settings(max_examples=150, deadline=None)
@given(case=st.sampled_from(sorted(CASES)), draw=st.data())
def test_any_single_changed_figure_of_a_plan_is_different(case: str, draw: st.DataObject) -> None:
    planned = plan(**CASES[case])
    kept = {key: planned[key] for key in ("memory", "waybill", "edges", "handoff")}
    path = draw.draw(st.sampled_from(figures_in(kept)))
    other = changed_at(planned, path, draw.draw(st.sampled_from([1, 4, 2**40])))
    assert compare(planned, other)["verdict"] == "different"
    assert compare(other, planned)["verdict"] == "different"


@settings(max_examples=150, deadline=None)
@given(case=st.sampled_from(sorted(CASES)), draw=st.data())
def test_any_single_changed_figure_of_a_run_is_different(case: str, draw: st.DataObject) -> None:
    planned = plan(**CASES[case])
    run = run_of(planned)
    kept = {key: run[key] for key in ("waybill", "edges", "resident")}
    paths = [path for path in figures_in(kept) if path[-1] not in ("payload_bytes",) and "per_pass" not in path]
    path = draw.draw(st.sampled_from(paths))
    other = changed_at(run, path, draw.draw(st.sampled_from([1, 4, 2**40])))
    assert compare(planned, other)["verdict"] == "different", path
    if "observed_bytes" not in path:
        assert compare(run, other)["verdict"] == "different", path


@settings(max_examples=100, deadline=None)
@given(case=st.sampled_from(sorted(CASES)), draw=st.data())
def test_a_falsified_prediction_is_different_though_the_run_is_unchanged(case: str, draw: st.DataObject) -> None:
    planned = plan(**CASES[case])
    run = run_of(planned)
    kept = {key: planned[key] for key in ("waybill", "edges", "handoff")}
    skip = ("payload_bytes",)
    inner = [p for p in figures_in(kept) if p[-1] not in skip and "per_pass" not in p]
    false = signed(changed_at(planned, draw.draw(st.sampled_from(inner)), 4))
    assert compare(false, run | {"plan_id": false["id"]})["verdict"] == "different"


def test_a_staged_row_gives_one_comparison_row_a_leg() -> None:
    planned = plan(fleet="two-gpu-staged")
    rows = [row for row in compare(planned, run_of(planned))["rows"] if row["tensor"] == "k"]
    assert [(row["src"], row["dst"], row["kind"]) for row in rows] == [
        ("gpu:0", "host", "d2h"),
        ("host", "gpu:1", "h2d"),
    ]


def without_rows(run: dict[str, Any], phase: str) -> dict[str, Any]:
    rows = [row for row in run["waybill"] if row["phase"] != phase]
    return run | {"waybill": rows, "edges": edges_of(rows)}


def test_a_deleted_handoff_is_missing() -> None:
    planned = plan()
    comparison = compare(planned, without_rows(run_of(planned), "handoff"))
    rows = [row for row in comparison["rows"] if row["phase"] == "handoff"]
    assert [row["verdict"] for row in rows] == ["missing", "missing"]
    assert all(row["counted_bytes"] == 0 and row["observed_bytes"] is None for row in rows)
    assert all(row["difference"] == -row["predicted_bytes"] for row in rows)
    assert {"edges_match", "handoff_bytes_match"} <= failed(comparison)


def test_a_row_that_nobody_planned_is_unplanned() -> None:
    planned = plan()
    run = run_of(planned)
    extra = {
        "phase": "decode",
        "tensor": "logits",
        "src": "gpu:1",
        "dst": "host",
        "kind": "d2h",
        "bytes": 4,
        "copies": 1,
    }
    rows = [*run["waybill"], extra | {"legs": [{key: extra[key] for key in ("src", "dst", "kind", "bytes", "copies")}]}]
    comparison = compare(planned, run | {"waybill": rows, "edges": edges_of(rows)})
    assert [row["verdict"] for row in comparison["rows"] if row["tensor"] == "logits"] == ["unplanned"]
    assert failed(comparison) == {"edges_match"}


def test_a_copy_skipped_but_counted_is_a_mismatch_by_the_witness_alone() -> None:
    planned = plan()
    run = run_of(planned)
    k = next(row for row in run["waybill"] if row["tensor"] == "k")
    k["legs"][0]["observed_bytes"] = 0
    row = next(row for row in compare(planned, run)["rows"] if row["tensor"] == "k")
    assert (row["verdict"], row["counted_bytes"], row["observed_bytes"]) == ("mismatch", row["predicted_bytes"], 0)


def test_unequal_counts_are_a_mismatch_even_if_the_witness_agrees() -> None:
    planned = plan()
    run = run_of(planned)
    k = next(row for row in run["waybill"] if row["tensor"] == "k")
    for part in (k, k["legs"][0]):
        part["copies"] += 1
    run["edges"] = edges_of(run["waybill"])
    row = next(row for row in compare(planned, run)["rows"] if row["tensor"] == "k")
    assert row["verdict"] == "mismatch"
    assert row["observed_bytes"] == row["predicted_bytes"]


def test_repeats_of_one_row_are_added_up() -> None:
    planned = plan()
    run = run_of(planned)
    run["waybill"].append(copy.deepcopy(next(row for row in run["waybill"] if row["tensor"] == "v")))
    run["edges"] = edges_of(run["waybill"])
    row = next(row for row in compare(planned, run)["rows"] if row["tensor"] == "v")
    assert row["counted_bytes"] == 2 * row["predicted_bytes"]
    assert row["verdict"] == "mismatch"


@pytest.mark.parametrize("attention", ["device", "host"])
@pytest.mark.parametrize("made", [1, 5])
def test_a_run_that_bos_stopped_is_compared_by_the_passes_it_made(attention: str, made: int) -> None:
    planned = plan(attention=attention)
    comparison = compare(planned, run_of(planned, stopped_after=made))
    assert comparison["verdict"] == "equal", comparison["checks"]
    row = next(row for row in comparison["rows"] if row["phase"] == "decode" and row["verdict"] == "unwitnessed"
               and row["predicted_full_bytes"] != row["predicted_bytes"])  # fmt: skip
    assert row["predicted_full_bytes"] * made == row["predicted_bytes"] * planned["passes"]["decode"]
    assert comparison["passes"]["made"]["decode"] == made


def test_a_run_that_stops_early_without_bos_is_different() -> None:
    planned = plan()
    run = run_of(planned, stopped_after=5) | {"stopped": "steps"}
    assert {"edges_match", "decode_dispatched"} <= failed(compare(planned, run))


def test_a_run_that_claims_a_bos_which_it_did_not_walk_is_different() -> None:
    planned = plan()
    run = run_of(planned, stopped_after=5)
    run["tokens"][-1] = 77
    assert {"edges_match", "decode_dispatched"} <= failed(compare(planned, run))


@pytest.mark.parametrize("handed_over", [True, False])
def test_bos_as_first_chosen_token_leaves_the_split_untold(handed_over: bool) -> None:
    planned = plan()
    run = run_of(planned, stopped_after=0)
    run = without_rows(run, "decode")
    if not handed_over:
        run = without_rows(run, "handoff")
    comparison = compare(planned, run)
    assert comparison["verdict"] == "inconclusive", comparison["checks"]
    assert check(comparison, "edges_match")["result"] == "passed"


def test_half_a_handoff_before_bos_is_different() -> None:
    planned = plan()
    run = without_rows(run_of(planned, stopped_after=0), "decode")
    rows = [row for row in run["waybill"] if row["tensor"] != "v"]
    comparison = compare(planned, run | {"waybill": rows, "edges": edges_of(rows)})
    assert failed(comparison) == {"edges_match"}


def test_a_changed_verdict_of_plans_is_different() -> None:
    admitted, refused = plan(), plan(utilization="0.0001")
    assert refused["verdict"] == "refused"
    comparison = compare(admitted, refused)
    assert "verdict_unchanged" in failed(comparison)
    assert check(comparison, "verdict_unchanged")["detail"].startswith("admitted -> refused")


def test_runs_that_chose_other_tokens_are_different() -> None:
    run = run_of(plan())
    other = copy.deepcopy(run)
    other["tokens"][-1] += 1
    other["generated_tokens"][-1] += 1
    assert failed(compare(run, other)) == {"tokens_unchanged"}


def test_runs_whose_own_comparison_changed_are_different() -> None:
    planned = plan()
    run = run_of(planned)
    good, bad = (run | {"comparison": {"verdict": verdict}} for verdict in ("equal", "different"))
    assert failed(compare(good, bad)) == {"verdict_unchanged"}


def test_plans_of_unknown_models_have_no_figures_and_can_be_compared() -> None:
    bare = {"schema": "kvwaybill/plan/1", "verdict": "unverified", "id": "0" * 64, "reasons": [], "limits": []}
    assert compare(bare, bare)["verdict"] == "equal"
    assert compare(bare, plan())["verdict"] == "different"


def test_run_before_plan_is_refused_with_the_right_order() -> None:
    planned = plan()
    with pytest.raises(DescriptionError, match="compare PLAN RUN"):
        compare(run_of(planned), planned)


def test_a_plan_that_was_not_admitted_has_no_runs() -> None:
    planned = plan()
    with pytest.raises(DescriptionError, match="only an admitted plan"):
        compare(planned | {"verdict": "refused"}, run_of(planned))


def test_a_run_of_another_plan_is_said_so_in_the_limits() -> None:
    planned = plan()
    comparison = compare(planned, run_of(planned) | {"plan_id": "0" * 64})
    assert "another plan" in comparison["limits"][0]


@given(
    st.lists(
        st.tuples(st.sampled_from(["passed", "failed", "inconclusive", "waived"]), st.booleans()),
    )
)
def test_the_verdict_follows_the_checks(results: list[tuple[str, bool]]) -> None:
    verdict = verdict_of([{"result": result, "required": required} for result, required in results])
    if any(result == "failed" for result, _ in results):
        assert verdict == "different"
    elif ("inconclusive", True) in results:
        assert verdict == "inconclusive"
    else:
        assert verdict == "equal"
