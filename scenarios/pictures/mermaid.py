"""A scene as Mermaid text, for pages that draw it themselves. The same boxes, lines and words as the SVG."""

from __future__ import annotations

import re

from scenarios.pictures.shape import Box, Line, Scene

_PLAIN = re.compile(r"[A-Za-z0-9 .,:/_\-+()?]")
_SHAPES = {"host": ("(", ")"), "switch": ("{{", "}}"), "nic": ("[/", "/]"), "device": ("[", "]")}
_LOOKS = (
    "classDef prefill fill:#fff3bf,stroke:#b08800,color:#1f2328",
    "classDef decode fill:#d3f5ef,stroke:#0b7a6b,color:#1f2328",
    "classDef both fill:#f6dff0,stroke:#a0207a,color:#1f2328",
)


def mermaid_text(scene: Scene) -> str:
    """A flowchart. Ids are numbers, and every character of a label that could mean something is written as its code."""
    names = {box.name: f"n{number}" for number, box in enumerate(scene.boxes)}
    parts = ["---", f'title: "{_title(scene.heading)}"', "---", "flowchart TB"]
    parts += [f"  %% {_comment(note)}" for note in (scene.under, *scene.notes)]
    groups = [group for group in scene.frames if group]
    for number, group in enumerate(groups):
        parts.append(f'  subgraph g{number}["{escape(scene.frames[group])}"]')
        parts += [f"    {_box(box, names)}" for box in scene.boxes if box.group == group]
        parts.append("  end")
    parts += [f"  {_box(box, names)}" for box in scene.boxes if box.group not in groups]
    parts += [f"  {_line(line, names)}" for line in scene.lines]
    carried = [str(number) for number, line in enumerate(scene.lines) if line.kv is not None]
    if carried:
        parts.append(f"  linkStyle {','.join(carried)} stroke:#d1006c,stroke-width:4px")
    placed = [box for box in scene.boxes if box.role is not None]
    if placed:
        parts += [f"  {look}" for look in _LOOKS]
        parts += [f"  class {names[box.name]} {box.role}" for box in placed]
    return "\n".join(parts) + "\n"


def escape(text: str) -> str:
    """Text for a label in quotes: all but letters, digits and a few marks as `#code;`."""
    return "".join(char if _PLAIN.fullmatch(char) else f"#{ord(char)};" for char in text)


def _title(text: str) -> str:
    """The front matter is YAML: what it or the page could read otherwise is left out."""
    return "".join(char for char in text if _PLAIN.fullmatch(char))


def _comment(text: str) -> str:
    """A comment ends with its line; braces would begin a directive."""
    return "".join(char if char.isprintable() and char not in "{}%" else " " for char in text)


def _box(box: Box, names: dict[str, str]) -> str:
    before, after = _SHAPES[box.kind]
    return f'{names[box.name]}{before}"{"<br/>".join(escape(line) for line in box.lines)}"{after}'


def _line(line: Line, names: dict[str, str]) -> str:
    words = "<br/>".join(escape(part) for part in (line.kv, line.words) if part)
    if line.kv is not None and line.priced:
        arrow = "==>"
    elif line.both:
        arrow = "<-->" if line.priced else "<-.->"
    else:
        arrow = "-->" if line.priced else "-.->"
    return f'{names[line.src]} {arrow}|"{words}"| {names[line.dst]}'
