"""Coverage-guided fuzzing of one reader: `python -m tests.fuzz.coverage TARGET [libFuzzer options]` (extra `[fuzz]`).

Inputs that raise anything but DescriptionError, or hang, are written to the current folder by libFuzzer; keep them,
made small, in `corpus/TARGET/`, where the suite reads them ever after. `make fuzz` gives every target a minute.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.fuzz.targets import CORPUS, TARGETS, outcome


def main() -> None:
    """Lists the targets, or runs libFuzzer over one; inputs it finds go to a temporary folder, not to the corpus."""
    if sys.argv[1:] == ["--list"]:
        sys.stdout.write("\n".join(sorted(TARGETS)) + "\n")
        return
    if len(sys.argv) < 2 or sys.argv[1] not in TARGETS:
        sys.exit(f"name a target: {', '.join(sorted(TARGETS))}")
    try:
        import atheris
    except ImportError:
        sys.exit("coverage-guided fuzzing needs atheris: install kvwaybill[fuzz]")
    target = sys.argv[1]
    with atheris.instrument_imports(include=["fleet", "planner", "executor", "scenarios"]):
        outcome(target, b"x", Path(tempfile.mkdtemp()))
    folder, found = Path(tempfile.mkdtemp()), tempfile.mkdtemp()

    def one(data: bytes) -> None:
        outcome(target, data, folder)

    atheris.Setup([sys.argv[0], "-max_len=65536", *sys.argv[2:], found, str(CORPUS / target)], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
