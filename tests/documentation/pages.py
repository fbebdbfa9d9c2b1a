"""Writes the generated pages of `docs/`: `python -m tests.documentation.pages`. A test fails when one is not current.

`command-reference.md` is what `--help` prints, command by command. `file-formats.md` is made from the JSON Schemas of
the files that users write.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any

import typer

from scenarios.cli.__main__ import main, make_app

DOCS = Path(__file__).resolve().parents[2] / "docs"
WIDTH = "100"

Document = dict[str, Any]


def command_lines() -> list[tuple[str, ...]]:
    """Every command and subcommand, in the order of the help."""
    root: Any = typer.main.get_command(make_app())
    found: list[tuple[str, ...]] = [()]

    def below(group: Any, words: tuple[str, ...]) -> None:
        for name, command in group.commands.items():
            found.append((*words, name))
            if hasattr(command, "commands"):
                below(command, (*words, name))

    below(root, ())
    return found


def help_of(words: tuple[str, ...]) -> str:
    """What `kvwaybill WORDS --help` prints at a width of 100 columns."""
    held, before = io.StringIO(), os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = WIDTH
    try:
        with redirect_stdout(held):
            main([*words, "--help"])
    finally:
        os.environ.pop("COLUMNS") if before is None else os.environ.update(COLUMNS=before)
    return held.getvalue()


def command_page() -> str:
    """`command-reference.md`."""
    parts = [
        "# Command reference\n\nGenerated from `--help` (`python -m tests.documentation.pages`). What is common to all"
        " commands is in [commands](commands.md), what codes mean in [exit codes](exit-codes.md).\n"
    ]
    for words in command_lines():
        lines = [f"    {line}".rstrip() for line in help_of(words).strip().splitlines()]
        parts.append(f"## {' '.join(('kvwaybill', *words))}\n\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


def schemas() -> dict[str, Document]:
    """The JSON Schema of each file that users write, by what it is."""
    return {name: getattr(import_module(module), function)() for name, (module, function) in _SCHEMAS.items()}


_SCHEMAS = {
    "fleet": ("fleet.schema", "fleet_schema"),
    "scenario": ("scenarios.scenario", "scenario_schema"),
    "simulation": ("scenarios.simulation.schema", "simulation_schema"),
    "sweep": ("scenarios.sweeping.schema", "sweep_schema"),
}


def format_page() -> str:
    """`file-formats.md`."""
    parts = [
        "# File formats\n\nGenerated from the JSON Schemas (`python -m tests.documentation.pages`). Hand-written files"
        " forbid keys that are not listed; `x-` is free. Figures are texts with a unit (`80 GiB`, `450 GB/s`, `2.6 us`)"
        " or mappings with `value` and a source, as [fleet](fleet-format.md) tells.\n"
    ]
    for name, schema in schemas().items():
        parts.append(f"## {schema.get('title', name)}\n")
        parts.append(_table(schema, schema))
        for title, part in sorted((schema.get("$defs") or {}).items()):
            if part.get("properties"):
                parts.append(f"### {title}\n\n{' '.join(str(part.get('description', '')).split())}\n")
                parts.append(_table(part, schema))
    return "\n".join(parts)


def _table(part: Document, schema: Document) -> str:
    lines = ["| field | takes | default | |", "|---|---|---|---|"]
    for name, kind, default, told in _rows(part, schema, ""):
        lines.append(f"| `{name}` | {kind} | {default} | {told} |")
    return "\n".join(lines) + "\n"


def _rows(part: Document, schema: Document, above: str) -> Iterator[tuple[str, str, str, str]]:
    needed = part.get("required") or ()
    for name, entry in (part.get("properties") or {}).items():
        default = "needed" if name in needed else _shown(entry["default"]) if entry.get("default") is not None else ""
        told = " ".join(str(entry.get("description", "")).split())
        yield above + name, _kind(entry), default, told
        if entry.get("properties"):
            yield from _rows(entry, schema, f"{above}{name}.")


def _shown(value: Any) -> str:
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _kind(entry: Document) -> str:
    """What a field takes, in a few words."""
    if "$ref" in entry:
        return f"[{entry['$ref'].rpartition('/')[2]}](#{entry['$ref'].rpartition('/')[2].lower()})"
    for joined in ("anyOf", "oneOf", "allOf"):
        if joined in entry:
            kinds = dict.fromkeys(_kind(one) for one in entry[joined] if one.get("type") != "null")
            return " or ".join(kinds)
    if "const" in entry:
        return f"`{entry['const']}`"
    if "enum" in entry:
        return ", ".join(f"`{one}`" for one in entry["enum"] if one is not None)
    names = entry.get("type", "anything")
    kinds = [one for one in (names if isinstance(names, list) else [names]) if one != "null"]
    told = " or ".join({"object": "mapping", "array": "list"}.get(one, one) for one in kinds)
    if entry.get("items"):
        told += f" of {_kind(entry['items'])}"
    if isinstance(entry.get("additionalProperties"), dict) and entry["additionalProperties"]:
        told += f" of name: {_kind(entry['additionalProperties'])}"
    examples = entry.get("examples") or []
    return told + (f", e.g. {', '.join(f'`{one}`' for one in examples)}" if examples else "")


PAGES = {"command-reference.md": command_page, "file-formats.md": format_page}


if __name__ == "__main__":
    for page, write in PAGES.items():
        (DOCS / page).write_text(write())
