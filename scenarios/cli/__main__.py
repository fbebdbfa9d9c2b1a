"""`kvwaybill` and `python -m scenarios.cli`: the list of commands, and nothing else.

Nothing is imported before `main` is in charge, so that Ctrl-C in the first moments and a broken installation end with a
code and a word, too.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import typer

COMMANDS = (
    "admit", "place", "explain", "run", "prove", "compare", "audit", "history", "report", "simulate", "sweep",
    "calibrate", "witness", "fleet", "model", "scenario", "backends",
)  # fmt: skip
"""Files of this package that hold commands, in the order of the help; each has `register(app)`."""


EPILOG = """\b
Start with:
  kvwaybill admit two-gpu --plan-out plan.json
  kvwaybill run plan.json
  kvwaybill prove two-gpu

\b
Exit codes: 0 yes, 1 no, 2 wrong usage or a wrong file, 3 cannot say,
4 it broke, 130 interrupted."""


_FLAGS = ("-q", "--quiet", "--no-color", "--debug")
"""Global options that may stand before a command and change nothing of which it is."""


_NEW_OBJECTS = 20_000
"""New objects after which cycles are looked for; Python's 700 come up a hundred times while modules are loaded, and
none of them is garbage then.
"""


def commands_of(arguments: Sequence[str]) -> tuple[str, ...]:
    """The commands that a command line can need: the one that it names, or all where it does not plainly name one.

    Help, completion and a misspelt name need them all. What a command's options look like is worked out when it is
    registered, and takes as long for the others as for the one that runs.
    """
    first = next((word for word in arguments if word not in _FLAGS), None)
    return (first,) if first in COMMANDS else COMMANDS


def make_app(commands: Sequence[str] = COMMANDS) -> typer.Typer:
    """The app with these commands registered."""
    from importlib import import_module

    from scenarios.cli import frame

    app = frame.new_app(frame.PURPOSE)
    app.callback(epilog=EPILOG)(frame.global_options)
    for name in commands:
        import_module(f"scenarios.cli.{name}").register(app)
    return app


def main(arguments: list[str] | None = None) -> int:
    """One command line; the exit code (docs/exit-codes.md)."""
    before = gc.get_threshold()
    gc.set_threshold(_NEW_OBJECTS, *before[1:])
    try:
        from scenarios.cli import frame

        named = commands_of(sys.argv[1:] if arguments is None else arguments)
        return frame.main(lambda: make_app(named), arguments)
    except KeyboardInterrupt:
        return _last_word("interrupted", 130)
    except ImportError as error:
        return _last_word(f"error: the installation is broken: {error}", 4)
    finally:
        gc.set_threshold(*before)


def _last_word(words: str, code: int) -> int:
    """For what happens before the frame is there, or behind it."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(words + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
