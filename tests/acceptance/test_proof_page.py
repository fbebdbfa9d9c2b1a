"""The page on the proof lists the sabotages that there are."""

from __future__ import annotations

from pathlib import Path

from scenarios.sabotage import SABOTAGES

PAGE = Path(__file__).parents[2] / "docs" / "proof.md"


def test_the_page_lists_every_sabotage_with_what_it_must_fail() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.startswith("| ") and line[2].isdigit()]
    wanted = [
        f"| {number} | {s.name} | {s.what} | {', '.join(f'`{name}`' for name in s.must_fail)} |"
        for number, s in enumerate(SABOTAGES, 1)
    ]
    assert rows == wanted
