"""A placed scene as SVG: one file, no scripts, no fonts, nothing fetched; light or dark as the reader has it."""

from __future__ import annotations

import math

from scenarios.pictures.layout import text_width
from scenarios.pictures.places import Curve, Label, Placed, Point, Rect
from scenarios.pictures.routes import BOX_PAD
from scenarios.pictures.shape import Box, Line

_KINDS = {
    "nvlink": ("#1b7f3b", "#6fdc8c"), "xgmi": ("#b3261e", "#ff8f87"), "pcie": ("#1f5fbf", "#82b1ff"),
    "c2c": ("#7b3fb5", "#cfa6ff"), "net": ("#a85400", "#ffb55c"), "host": ("#5f6368", "#b4bac0"),
    "kv": ("#d1006c", "#ff66b2"),
}  # fmt: skip
_HEAD = 9.0
_LEGEND_ROW = 20.0
_STYLE = """
text{font-family:system-ui,"Segoe UI",Roboto,"DejaVu Sans",Arial,sans-serif;font-size:12px;fill:#1f2328}
.bg{fill:#fff}.big{font-size:16px;font-weight:600}.name{font-weight:600;font-size:13px}.dim{fill:#57606a}
.box{fill:#f6f8fa;stroke:#8c959f}.switch{fill:#eef3ff}.host{fill:#f3f0ea}.nic{fill:#fff4e5}
.prefill{fill:#fff3bf;stroke:#b08800;stroke-width:2}.decode{fill:#d3f5ef;stroke:#0b7a6b;stroke-width:2}
.both{fill:#f6dff0;stroke:#a0207a;stroke-width:2}.stack{fill:none;stroke:#8c959f}
.frame{fill:none;stroke:#afb8c1;stroke-dasharray:2 4}
.l{fill:none;stroke-width:1.8}.h{stroke:none}.unpriced{stroke-dasharray:6 4}.carry{stroke-width:4.5}
.lab{fill:#fff;fill-opacity:.85}
"""
_DARK = """
text{fill:#e6edf3}.bg{fill:#0d1117}.dim{fill:#9da7b3}
.box{fill:#161b22;stroke:#8b949e}.switch{fill:#152033}.host{fill:#211d16}.nic{fill:#2b2113}
.prefill{fill:#3a3000;stroke:#e3b341}.decode{fill:#06332d;stroke:#3fd6bf}.both{fill:#3a1230;stroke:#ff8ad8}
.stack{stroke:#8b949e}.frame{stroke:#57606a}.lab{fill:#0d1117}
"""


def svg_text(placed: Placed) -> str:
    """The picture, with heading, legend and notes."""
    scene = placed.scene
    foot = _foot(placed)
    told = [*scene.notes, *(entry.words for entry in scene.legend)]
    width = max(placed.width, 360.0, *(text_width(words) + 130 for words in told), text_width(scene.under) + 48)
    top = 62.0
    height = top + placed.height + foot[1]
    shift = (width - placed.width) / 2
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="t">',
        f'<title id="t">{escape(f"{scene.heading}: {scene.under}")}</title>',
        f"<style>{_styles()}</style>",
        f'<rect class="bg" width="{width:.0f}" height="{height:.0f}"/>',
        f'<text class="big" x="24" y="30">{escape(scene.heading)}</text>',
        f'<text class="dim" x="24" y="49">{escape(scene.under)}</text>',
        f'<g transform="translate({shift:.1f} {top:.0f})">',
        *_frames(placed),
        *(_line(line, path) for line, path in zip(scene.lines, placed.paths, strict=True)),
        *(_box(box, placed.rects[box.name]) for box in scene.boxes),
        *(_label(line, label) for line, label in zip(scene.lines, placed.labels, strict=True) if label is not None),
        "</g>",
        f'<g transform="translate(24 {top + placed.height:.0f})">',
        *foot[0],
        "</g>",
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def escape(text: str) -> str:
    """Text as XML: markup and quotes escaped, characters that XML does not allow written as their code."""
    shown = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
    for char, name in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;"), ("'", "&#39;")):
        shown = shown.replace(char, name)
    return shown


def _styles() -> str:
    light = "".join(f".{k}-l{{stroke:{c}}}.{k}-h{{fill:{c}}}" for k, (c, _) in _KINDS.items())
    dark = "".join(f".{k}-l{{stroke:{c}}}.{k}-h{{fill:{c}}}" for k, (_, c) in _KINDS.items())
    return f"{_STYLE}{light}\n@media (prefers-color-scheme:dark){{{_DARK}{dark}}}\n"


def _look(line: Line) -> str:
    if line.kv is not None:
        return "kv"
    return line.kind if line.kind in _KINDS else "host"


def _line(line: Line, path: tuple[Curve, ...]) -> str:
    look = _look(line)
    carry = " carry" if line.kv is not None else ""
    dashed = "" if line.priced else " unpriced"
    long = _HEAD + (4 if carry else 0)
    start, end = path[0], path[-1]
    heads = [_head(end[3], end[2], long)] + ([_head(start[0], start[1], long)] if line.both else [])
    triangles = "".join(f'<path class="h {look}-h" d="{head}"/>' for head in heads)
    title = f"<title>{escape(line.title)}</title>"
    return f'<g>{title}<path class="l {look}-l{carry}{dashed}" d="{_course(path)}"/>{triangles}</g>'


def _course(path: tuple[Curve, ...]) -> str:
    words = [f"M{_at(path[0][0])}"]
    words += [f"C{_at(b)} {_at(c)} {_at(d)}" for _, b, c, d in path]
    return " ".join(words)


def _at(point: Point) -> str:
    return f"{point[0]:.1f},{point[1]:.1f}"


def _head(tip: Point, behind: Point, long: float) -> str:
    """A triangle whose tip is the end of a line."""
    dx, dy = tip[0] - behind[0], tip[1] - behind[1]
    size = math.hypot(dx, dy) or 1.0
    ux, uy = dx / size, dy / size
    base = (tip[0] - ux * long, tip[1] - uy * long)
    half = long * 0.42
    left, right = (base[0] - uy * half, base[1] + ux * half), (base[0] + uy * half, base[1] - ux * half)
    return f"M{_at(tip)} L{_at(left)} L{_at(right)} Z"


def _box(box: Box, rect: Rect) -> str:
    look = f"box {box.role or box.kind}"
    round_ = 14 if box.kind == "host" else 3
    size = f'width="{rect.right - rect.left:.1f}" height="{rect.bottom - rect.top:.1f}" rx="{round_}"'
    drawn = f'<rect class="{look}" x="{rect.left:.1f}" y="{rect.top:.1f}" {size}/>'
    if box.count > 1:
        drawn = f'<rect class="stack" x="{rect.left + 5:.1f}" y="{rect.top + 4:.1f}" {size}/>' + drawn
    middle = (rect.left + rect.right) / 2
    step = 16.0
    first = (rect.top + rect.bottom) / 2 - step * (len(box.lines) - 1) / 2 + 4
    assert rect.bottom - rect.top >= step * len(box.lines) + BOX_PAD
    texts = [
        f'<text class="{"name" if number == 0 else "dim"}" text-anchor="middle" x="{middle:.1f}" '
        f'y="{first + step * number:.1f}">{escape(words)}</text>'
        for number, words in enumerate(box.lines)
    ]
    return f"<g><title>{escape(box.title)}</title>{drawn}{''.join(texts)}</g>"


def _label(line: Line, label: Label) -> str:
    rect = label.rect
    middle = (rect.left + rect.right) / 2
    size = f'width="{rect.right - rect.left:.1f}" height="{rect.bottom - rect.top:.1f}" rx="4"'
    parts = [f'<rect class="lab" x="{rect.left:.1f}" y="{rect.top:.1f}" {size}/>']
    for number, words in enumerate(label.lines):
        look = f'class="{_look(line)}-h" ' if number == 0 and line.kv else ""
        y = rect.top + 12 + 16 * number
        parts.append(f'<text {look}text-anchor="middle" x="{middle:.1f}" y="{y:.1f}">{escape(words)}</text>')
    return "".join(parts)


def _frames(placed: Placed) -> list[str]:
    parts = []
    for name, rect in placed.frames.items():
        size = f'width="{rect.right - rect.left:.1f}" height="{rect.bottom - rect.top:.1f}"'
        parts.append(f'<rect class="frame" x="{rect.left:.1f}" y="{rect.top:.1f}" {size} rx="8"/>')
        words = escape(placed.scene.frames[name])
        parts.append(f'<text class="dim" x="{rect.left + 10:.1f}" y="{rect.top + 16:.1f}">{words}</text>')
    return parts


def _foot(placed: Placed) -> tuple[list[str], float]:
    """Legend and notes, and the height that they take."""
    parts: list[str] = []
    at = 14.0
    for entry in placed.scene.legend:
        look = entry.kind if entry.kind in _KINDS else "host"
        dashed = "" if entry.priced else " unpriced"
        parts.append(f'<text class="name" x="0" y="{at + 4:.0f}">{escape(entry.key)}</text>')
        parts.append(f'<path class="l {look}-l{dashed}" d="M26,{at:.0f} L70,{at:.0f}"/>')
        parts.append(f'<text x="80" y="{at + 4:.0f}">{escape(entry.words)}</text>')
        at += _LEGEND_ROW
    if any(line.kv for line in placed.scene.lines):
        parts.append(f'<path class="l kv-l carry" d="M26,{at:.0f} L70,{at:.0f}"/>')
        parts.append(f'<text x="80" y="{at + 4:.0f}">the KV handoff of the plan</text>')
        at += _LEGEND_ROW
    at += 6
    for note in placed.scene.notes:
        parts.append(f'<text class="dim" x="0" y="{at + 4:.0f}">{escape(note)}</text>')
        at += _LEGEND_ROW - 2
    return parts, at + 10
