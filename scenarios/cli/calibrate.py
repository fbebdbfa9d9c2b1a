"""`kvwaybill calibrate`: what copies on this machine take, as figures and laid over a fleet."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from scenarios.cli import options as opt
from scenarios.cli.console import Console
from scenarios.cli.frame import YES, Format, FormatOption, command, wrong_use

OntoOption = Annotated[str | None, typer.Option("--onto", metavar="FLEET", help="The fleet that the overlay is for.")]
OverlayOption = Annotated[
    str | None, typer.Option("--overlay-out", metavar="FILE", help="Write FLEET with observed figures here.")
]


def register(app: typer.Typer) -> None:
    """Adds the command."""

    @command(app, "calibrate")
    def calibrate(
        console: Console,
        backend: opt.BackendOption = "numba",
        onto: OntoOption = None,
        overlay_out: OverlayOption = None,
        output: FormatOption = Format.text,
    ) -> int:
        """Time copies on this machine: alpha and beta of each edge. 0 measured, 2 wrong use, 3 cannot measure."""
        from fleet.load import load_fleet
        from scenarios.calibration import calibrate as measure
        from scenarios.calibration import overlay
        from scenarios.documents import check_writable, write_text

        if (onto is None) != (overlay_out is None):
            wrong_use("--onto FLEET and --overlay-out FILE go together")
        if overlay_out is not None:
            check_writable(overlay_out)
        fleet = None if onto is None else load_fleet(onto)  # a wrong file is told before time is spent on measuring
        measured = measure(backend)
        if fleet is not None and overlay_out is not None:
            text, told = overlay(measured, fleet)
            for words in told:
                console.warn(words)
            write_text(overlay_out, text)
            console.note(f"fleet with observed figures written to {overlay_out}")
        if output is Format.json:
            console.document(measured)
        else:
            console.result(_text(measured))
        return YES


def _text(measured: dict[str, Any]) -> str:
    lines = [f"{'edge':30} {'alpha':>10} {'beta':>14} {'held out':>9}"]
    for edge in measured["edges"]:
        name = f"{edge['kind']} {edge['src']} -> {edge['dst']} {edge.get('memory') or edge.get('access') or ''}"
        if edge.get("not_a_line"):
            low, high = (rate / 1e9 for rate in edge["rate_bytes_per_s"])
            lines.append(f"{name:30} not a line: {low:.1f} to {high:.1f} GB/s from 1 MiB on")
            continue
        fit = edge["train"]
        figures = f"{fit['alpha_s'] * 1e6:>7.2f} us {fit['beta_bytes_per_s'] / 1e9:>9.1f} GB/s"
        odd = "  not a line" if fit["not_a_line"] else ""
        lines.append(f"{name:30} {figures} {fit['worst_held_out']:>8.1%}{odd}")
    return "\n".join([*lines, "", "Limits", *(f"  - {limit}" for limit in measured["limits"])]) + "\n"
