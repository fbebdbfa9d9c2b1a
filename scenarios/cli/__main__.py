"""`kvwaybill` and `python -m scenarios.cli`: the list of commands, and nothing else."""

from __future__ import annotations

import sys

import typer

from scenarios.cli import frame

COMMANDS = ("admit", "explain", "run", "prove", "compare", "fleet", "model", "scenario", "backends")
"""Files of this package that hold commands, in the order of the help; each has `register(app)`."""


def make_app() -> typer.Typer:
    """The app with every command registered."""
    from importlib import import_module

    app = frame.new_app(frame.PURPOSE)
    app.callback()(frame.global_options)
    for name in COMMANDS:
        import_module(f"scenarios.cli.{name}").register(app)
    return app


def main(arguments: list[str] | None = None) -> int:
    """One command line; the exit code (docs/exit-codes.md)."""
    return frame.main(make_app, arguments)


if __name__ == "__main__":
    sys.exit(main())
