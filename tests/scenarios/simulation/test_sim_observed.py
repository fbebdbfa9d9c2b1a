"""Simulated beside observed: errors, correlation, and a factor that is never scored on what it was fitted with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleet.errors import DescriptionError
from scenarios.simulation.observed import _score, read_observed
from tests.command_line import asker


def test_a_factor_is_found_on_one_half_and_scored_on_the_other() -> None:
    simulated = {n: 1.0 + n for n in range(10)}
    observed = {n: (1.0 + n) * (2.0 if n % 2 == 0 else 2.5) for n in range(10)}
    found = _score(observed, simulated)
    assert found["factor"] == 2.0
    assert found["mape_with_factor"] == pytest.approx(0.2)
    assert found["mape"] == pytest.approx((5 * 0.5 + 5 * 0.6) / 10)
    assert (found["factor_fitted_on"], found["scored_on"]) == (5, 5)


def test_what_is_proportional_correlates_wholly_and_what_is_constant_not_at_all() -> None:
    simulated = {n: 1.0 + n for n in range(8)}
    assert _score({n: 3 * v for n, v in simulated.items()}, simulated)["pearson"] == pytest.approx(1.0)
    assert _score(dict.fromkeys(range(8), 2.0), simulated)["pearson"] is None


def test_few_pairs_score_nothing() -> None:
    found = _score({0: 1.0, 1: 1.0, 2: 1.0}, {0: 1.0, 1: 1.0, 2: 1.0})
    assert (found["mape"], found["factor"], found["pearson"]) == (None, None, None)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"request": 9, "ttft_s": 1}\n', "is no number of a simulated request"),
        ('{"request": true, "ttft_s": 1}\n', "is no number of a simulated request"),
        ('{"request": 0, "ttft_s": -1}\n', "is no time above 0"),
        ('{"request": 0, "ttft_s": 1}\n{"request": 0, "ttft_s": 1}\n', "given twice"),
        ("nonsense\n", "is no JSON object"),
        ("", "holds no observation"),
    ],
)
def test_bad_observations_are_told_in_words(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "seen.jsonl"
    path.write_text(text)
    with pytest.raises(DescriptionError, match=words):
        read_observed(str(path), 4)


def test_the_simulations_own_records_are_observed_without_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ask, records, seen = asker(capfd), tmp_path / "r.jsonl", tmp_path / "seen.jsonl"
    assert ask("simulate", "chat", "--records-out", records).code == 0
    rows = [json.loads(line) for line in records.read_text().splitlines()]
    with seen.open("w") as file:
        for row in rows:
            e2e = (row["end_ps"] - row["arrival_ps"]) / 1e12
            file.write(json.dumps({"request": row["request"], "e2e_s": e2e}) + "\n")
    answer = ask("simulate", "chat", "--observed", seen, "-o", "json")
    found = answer.document["observed"]["e2e_s"]
    assert found["compared"] == 4000
    assert found["mape"] == 0.0
    assert found["factor"] == 1.0
    assert "Observed" in ask("simulate", "chat", "--observed", seen).out
