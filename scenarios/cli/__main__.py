"""`kvwaybill` and `python -m scenarios.cli`: the list of commands, and nothing else."""

from __future__ import annotations

import sys

import typer

from scenarios.cli import frame

COMMANDS = ("admit", "explain", "run", "prove", "compare", "fleet", "model", "scenario", "backends")
"""Files of this package that hold commands, in the order of the help; each has `register(app)`."""


EPILOG = """\b
Start with:
  kvwaybill admit two-gpu --plan-out plan.json
  kvwaybill run plan.json
  kvwaybill prove two-gpu

\b
Exit codes: 0 yes, 1 no, 2 wrong usage or a wrong file, 3 cannot say,
4 it broke, 130 interrupted."""


def make_app() -> typer.Typer:
    """The app with every command registered."""
    from importlib import import_module

    app = frame.new_app(frame.PURPOSE)
    app.callback(epilog=EPILOG)(frame.global_options)
    for name in COMMANDS:
        import_module(f"scenarios.cli.{name}").register(app)
    return app


def main(arguments: list[str] | None = None) -> int:
    """One command line; the exit code (docs/exit-codes.md)."""
    return frame.main(make_app, arguments)


if __name__ == "__main__":
    sys.exit(main())
