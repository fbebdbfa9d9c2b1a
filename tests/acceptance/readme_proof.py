"""The proof as the README shows it. When `prove` has changed: `python -m tests.acceptance.readme_proof`.

Four parts: the verdict with what was said, the checks of the split, checks x sabotages, and the sabotages by name.
"""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"
INDENT = " " * 4
SHOWN = "two-gpu-words"


def printed_lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines()]


def _sessions(lines: list[str]) -> list[str]:
    """The lines of the README without the indent of its sessions."""
    return [line.removeprefix(INDENT) for line in lines]


def matrix_place(lines: list[str]) -> tuple[int, int]:
    """First line and the one after the last: the numbers above the title, the checks, the legend, the sabotages."""
    title = next(number for number, line in enumerate(lines) if "Checks x sabotages" in line)
    names = next(number for number, line in enumerate(lines) if number > title and line.startswith("Sabotages"))
    end = next(number for number, line in enumerate(lines) if number > names and line[:1] != " ")
    return title - 1, end


def split_place(lines: list[str]) -> tuple[int, int]:
    """First line and the one after the last of the split's own checks."""
    head = next(number for number, line in enumerate(lines) if line.startswith("split: "))
    end = next(number for number, line in enumerate(lines) if number > head and line[:1] != " ")
    return head, end


def verdict_place(lines: list[str]) -> tuple[int, int]:
    """The line that begins the proof, what was asked, and the texts with and without the handoff."""
    head = next(number for number, line in enumerate(lines) if "sabotages caught as they must be" in line)
    text = next(number for number, line in enumerate(lines) if number > head and line == "Text")
    return head, next(number for number, line in enumerate(lines) if number > text and line[:1] != " ")


def written_anew(readme: str, printed: str) -> str:
    """The README with these parts as they were printed."""
    lines, found = readme.splitlines(), printed_lines(printed)
    for place in (matrix_place, split_place, verdict_place):
        (first, last), (start, end) = place(_sessions(lines)), place(found)
        lines[first:last] = [f"{INDENT}{line}".rstrip() for line in found[start:end]]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Proves the shipped scenario and puts the outcome into the README."""
    from scenarios.cli.__main__ import main as kvwaybill

    held = io.StringIO()
    with redirect_stdout(held):
        kvwaybill(["-q", "prove", SHOWN])
    README.write_text(written_anew(README.read_text(), held.getvalue()))


if __name__ == "__main__":
    main()
