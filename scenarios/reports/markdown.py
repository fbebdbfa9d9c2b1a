"""Pages as Markdown, for pull requests, job summaries (`>> "$GITHUB_STEP_SUMMARY"`) and notes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from scenarios.reports.page import Page, Section

_SPECIAL = re.compile(r"([\\`*_{}\[\]|~#])")
_MARKS = {
    "admitted": "🟢", "equal": "🟢", "proved": "🟢", "refused": "🔴", "different": "🔴", "not proved": "🔴",
    "unverified": "🟡", "inconclusive": "🟡",
}  # fmt: skip


def markdown_text(pages: Sequence[Page]) -> str:
    """The pages, one below the other."""
    return "\n\n".join("\n\n".join(_page(page)) for page in pages) + "\n"


def _page(page: Page) -> list[str]:
    verdict = "" if page.verdict is None else f": {_MARKS.get(page.verdict, '')} **{escaped(page.verdict.upper())}**"
    blocks = [f"## {escaped(page.title)}{verdict}"]
    if page.about:
        blocks.append("  \n".join(escaped(words) for words in page.about))
    for part in page.sections:
        blocks += _section(part)
    if page.limits:
        items = "\n".join(f"- {escaped(words)}" for words in page.limits)
        blocks.append(f"<details><summary>Limits</summary>\n\n{items}\n\n</details>")
    return blocks


def _section(part: Section) -> list[str]:
    blocks = [f"### {escaped(part.title)}"]
    if part.rows:
        right = [heading.startswith(">") for heading in part.headings]
        lines = [
            _line([heading.removeprefix(">") for heading in part.headings]),
            "|" + "|".join(" ---: " if each else " --- " for each in right) + "|",
            *(_line(row) for row in part.rows),
        ]
        blocks.append("\n".join(lines))
    blocks += [escaped(words) for words in part.words]
    return blocks


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(escaped(cell) for cell in cells) + " |"


def escaped(text: str) -> str:
    """Text of a document that can begin no markup, no HTML, no mention of a person and no second line."""
    plain = "".join(char if char.isprintable() else " " if char in "\r\n\t" else ascii(char)[1:-1] for char in text)
    plain = plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    plain = _SPECIAL.sub(r"\\\1", plain)
    plain = re.sub(r"@(?=[A-Za-z0-9])", "&#64;", plain)
    plain = re.sub(r"(?i)\b(https?|ftp|www)(?=[:.])", lambda found: f"{found[0][:1]}&#8203;{found[0][1:]}", plain)
    return re.sub(r"^(\s*)([-+=]|\d+[.)])(?=\s|$)", r"\1\\\2", plain)
