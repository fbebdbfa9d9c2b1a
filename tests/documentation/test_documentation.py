"""The docs site: generated pages are current, links lead somewhere, the Python session runs, every page is listed."""

from __future__ import annotations

import doctest
import re

import pytest

from tests.documentation.pages import DOCS, PAGES

ROOT = DOCS.parent
LINK = re.compile(r"!?\[[^\]]*\]\(([^)#\s]+)(#[^)\s]*)?\)")


@pytest.mark.parametrize("page", sorted(PAGES))
def test_a_generated_page_is_current(page):
    assert (DOCS / page).read_text() == PAGES[page](), "python -m tests.documentation.pages"


def test_the_python_session_prints_what_it_shows():
    result = doctest.testfile(str(DOCS / "python-api.md"), module_relative=False)
    assert result.failed == 0
    assert result.attempted > 10


def test_every_link_of_a_page_leads_to_a_file():
    gone = [
        f"{page.name}: {target}"
        for page in [*DOCS.glob("*.md"), ROOT / "README.md"]
        for target, _ in LINK.findall(page.read_text())
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert gone == []


def test_every_page_is_reached_from_the_front():
    front = (DOCS / "index.md").read_text()
    assert [page.name for page in sorted(DOCS.glob("*.md")) if page.name != "index.md" and page.name not in front] == []


def test_every_heading_of_a_link_exists():
    """`page.md#heading` as sites and GitHub make it: lower case, blanks to dashes, other signs dropped."""

    def anchors(text: str) -> set[str]:
        heads = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
        return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}

    gone = [
        f"{page.name}: {target}{anchor}"
        for page in DOCS.glob("*.md")
        for target, anchor in re.findall(r"\]\(([^)#\s]*)#([^)\s]*)\)", page.read_text())
        if "://" not in target
        and anchor not in anchors((page.parent / target).read_text() if target else page.read_text())
    ]
    assert gone == []
