"""Suites as workflow commands of GitHub Actions: annotations of the lines that are at fault, and of the whole.

Syntax: https://docs.github.com/actions/reference/workflow-commands-for-github-actions. GitHub keeps 10 errors and 10
warnings of a step, so what would be lost is told together in the last one.
"""

from __future__ import annotations

from collections.abc import Sequence

from scenarios.reports.gates import Gate, Suite

MOST = 10
LONGEST = 4000
"""Characters of one message: GitHub cuts longer ones."""


def github_text(suites: Sequence[Suite]) -> str:
    """One command a line: errors, then warnings, then a notice a suite."""
    pairs = [(suite, gate) for suite in suites for gate in suite.gates]
    failed = [_annotation(suite, gate) for suite, gate in pairs if gate.result == "failed" and gate.name != "verdict"]
    # A verdict that no single case explains stands for itself.
    for suite, gate in pairs:
        if gate.name == "verdict" and gate.result == "failed" and suite.count("failed") == 1:
            failed.append(_annotation(suite, gate))
    unsure = [_annotation(suite, gate) for suite, gate in pairs if gate.result == "error"]
    unsure += [(suite.name, words, None, None) for suite in suites for words in suite.warnings]
    lines = [*_bounded("error", failed), *_bounded("warning", unsure)]
    lines += [command("notice", _summary(suite), title=suite.name) for suite in suites]
    return "\n".join(lines) + "\n"


Annotation = tuple[str, str, str | None, int | None]
"""title, message, file, line."""


def _annotation(suite: Suite, gate: Gate) -> Annotation:
    words = f"{gate.name}: {gate.detail}" if gate.detail else gate.name
    return f"{suite.name}", words, gate.file, gate.line


def _bounded(level: str, found: list[Annotation]) -> list[str]:
    shown = found if len(found) <= MOST else found[: MOST - 1]
    lines = [command(level, words, title=title, file=file, line=line) for title, words, file, line in shown]
    if left := found[len(shown) :]:
        told = "\n".join(f"{title}: {words}" for title, words, _, _ in left)
        lines.append(command(level, f"{len(left)} more:\n{told}", title=f"{len(left)} more"))
    return lines


def _summary(suite: Suite) -> str:
    names = (("passed", "passed"), ("failed", "failed"), ("error", "cannot be told"), ("skipped", "skipped"))
    counts = ((suite.count(result), words) for result, words in names)  # type: ignore[arg-type]
    return ", ".join(f"{count} {words}" for count, words in counts if count)


def command(level: str, message: str, *, title: str, file: str | None = None, line: int | None = None) -> str:
    """`::error file=...,line=...,title=...::message`, escaped so that neither part can end early or begin another."""
    properties = {"file": file, "line": None if line is None else str(line), "title": title}
    told = ",".join(f"{name}={_property(value)}" for name, value in properties.items() if value is not None)
    return f"::{level} {told}::{_data(message[:LONGEST])}"


def _data(text: str) -> str:
    plain = "".join(char if char.isprintable() or char in "\r\n" else ascii(char)[1:-1] for char in text)
    return plain.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
