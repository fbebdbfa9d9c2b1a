"""The page of families is what the tables say; every line fits the width of the docs."""

from __future__ import annotations

from pathlib import Path

from fleet.models.families import FAMILIES
from fleet.models.layers import KINDS
from fleet.models.page import families_page

PAGE = Path(__file__).parents[2] / "docs" / "families.md"


def test_the_page_is_written_from_the_tables():
    assert PAGE.read_text() == families_page()


def test_every_family_and_kind_stands_on_it_once():
    lines = families_page().splitlines()
    for name in (*FAMILIES, *KINDS):
        assert [line for line in lines if line.startswith(f"| {name} |")], name
