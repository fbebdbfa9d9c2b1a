"""Pages as one HTML file that needs nothing else: pictures inside as data, no script, nothing fetched.

A content security policy forbids the rest, so that a name in a document can do nothing, whatever it holds. The file is
ASCII: what is not is written by its code point, and no terminal or server can garble it.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from scenarios.reports.figures import figures_of
from scenarios.reports.page import Page, Section
from scenarios.reports.render import svg_of
from scenarios.reports.sections import page_of
from scenarios.reports.shape import Figure
from scenarios.reports.specs import spec_of
from scenarios.reports.topology import topology_of

if TYPE_CHECKING:
    from scenarios.reports.making import Given

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_STYLE = """
body{font-family:system-ui,"Segoe UI",Roboto,"DejaVu Sans",Arial,sans-serif;margin:2rem auto;max-width:76rem;
padding:0 1rem;color:#1f2328;background:#fff;line-height:1.45}
h1{font-size:1.6rem}h2{font-size:1.35rem;border-bottom:1px solid #d0d7de;padding-bottom:.3rem;margin-top:2.5rem}
h3{font-size:1.05rem;margin-top:1.6rem}.about{color:#57606a}
.verdict{border-radius:1rem;padding:.1rem .8rem;color:#fff;font-size:1rem;background:#57606a}
.yes{background:#0b7a6b}.no{background:#b3261e}.unsure{background:#8a6100}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.85rem;font-variant-numeric:tabular-nums}
th,td{border-bottom:1px solid #d0d7de;padding:.25rem .6rem;text-align:left;vertical-align:top;overflow-wrap:anywhere}
th{background:#f6f8fa;white-space:nowrap}.n{text-align:right;white-space:nowrap}
td.yes,td.no,td.unsure{background:none;font-weight:600}td.yes{color:#0b7a6b}td.no{color:#b3261e}td.unsure{color:#8a6100}
figure{margin:1rem 0}img{max-width:100%;height:auto}figcaption,.small{color:#57606a;font-size:.85rem}
"""
_LOOK = {
    "admitted": "yes", "equal": "yes", "proved": "yes", "passed": "yes", "match": "yes", "caught": "yes", "kept": "yes",
    "refused": "no", "different": "no", "not proved": "no", "failed": "no", "mismatch": "no", "missing": "no",
    "unplanned": "no", "missed": "no", "error": "no",
    "unverified": "unsure", "inconclusive": "unsure", "unwitnessed": "unsure", "unknown": "unsure",
}  # fmt: skip


def html_text(given: Sequence[Given], fleets: Sequence[Any] = ()) -> str:
    """One page of all documents; `fleets` (`fleet.machine.Fleet`) are those that a plan's topology may be drawn of."""
    pages = [page_of(each.kind, each.document, each.source) for each in given]
    title = pages[0].title if len(pages) == 1 else f"{len(pages)} documents"
    parts = [
        "<!DOCTYPE html>", '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{_told(f'kvwaybill: {title}')}</title><style>{_STYLE}</style></head><body>",
        f"<h1>kvwaybill: {_told(title)}</h1>",
    ]  # fmt: skip
    for each, page in zip(given, pages, strict=True):
        parts += _page(each, page, fleets)
    text = "\n".join([*parts, "</body></html>"]) + "\n"
    return text.encode("ascii", errors="xmlcharrefreplace").decode("ascii")


def _page(each: Given, page: Page, fleets: Sequence[Any]) -> list[str]:
    look = _LOOK.get(page.verdict or "", "")
    verdict = "" if page.verdict is None else f' <span class="verdict {look}">{_told(page.verdict)}</span>'
    parts = [f"<h2>{_told(page.title)}{verdict}</h2>"]
    parts += [f'<p class="about">{_told(words)}</p>' for words in page.about]
    if each.kind == "plan" and (drawn := topology_of(each.document, fleets)) is not None:
        parts += [
            "<h3>Topology</h3>",
            _image(drawn[0], "the devices, their links, and the handoff of K and V", drawn[1]),
        ]
    figures = figures_of(each.kind, each.document)
    for part in page.sections:
        shown = [figure for figure in figures if figure.name == part.picture or _also(figure, part)]
        parts += _section(part, shown)
        figures = [figure for figure in figures if figure not in shown]
    parts += [_figure(figure) for figure in figures]
    if page.limits:
        items = "".join(f"<li>{_told(words)}</li>" for words in page.limits)
        parts.append(f'<h3>Limits</h3><ul class="small">{items}</ul>')
    return parts


def _also(figure: Figure, part: Section) -> bool:
    return (part.picture, figure.name) in (("latency", "ecdf"), ("workers", "occupancy"), ("edges", "closely"))


def _section(part: Section, figures: Sequence[Figure]) -> list[str]:
    parts = [f"<h3>{_told(part.title)}</h3>", *(_figure(figure) for figure in figures)]
    if part.rows:
        right = [heading.startswith(">") for heading in part.headings]
        cells = zip(part.headings, right, strict=True)
        head = "".join(f"<th{_class(each)}>{_told(name.removeprefix('>'))}</th>" for name, each in cells)
        body = "\n".join(_line(row, right) for row in part.rows)
        parts.append(f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>')
    parts += [f"<p>{_told(words)}</p>" for words in part.words]
    return parts


def _line(row: Sequence[str], right: Sequence[bool]) -> str:
    cells = zip(row, right, strict=True)
    return "<tr>" + "".join(f"<td{_class(each, _LOOK.get(cell))}>{_told(cell)}</td>" for cell, each in cells) + "</tr>"


def _class(right: bool, look: str | None = None) -> str:
    names = [name for name in ("n" if right else None, look) if name]
    return f' class="{" ".join(names)}"' if names else ""


def _figure(figure: Figure) -> str:
    return _image(svg_of(spec_of(figure)), f"{figure.title}; the numbers stand in the table or beside the bars", "")


def _image(svg: str, alt: str, caption: str) -> str:
    """As an image, in which no script runs and no id meets that of another picture."""
    data = b64encode(svg.encode("utf-8", errors="replace")).decode("ascii")
    words = f"<figcaption>{_told(caption)}</figcaption>" if caption else ""
    return f'<figure><img alt="{_told(alt)}" src="data:image/svg+xml;base64,{data}">{words}</figure>'


def _told(text: str) -> str:
    """Words of a document: markup escaped, and what cannot be printed spelled out."""
    return escape(
        "".join(char if char.isprintable() else " " if char in "\r\n\t" else ascii(char)[1:-1] for char in text)
    )
