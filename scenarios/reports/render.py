"""Specifications to SVG and PNG by vl-convert: no browser, no network. The only file that knows what is installed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fleet.errors import DescriptionError, InconclusiveError

Spec = dict[str, Any]
NEEDS = "pictures need the extra [report]: pip install 'kvwaybill[report]'"
NOWHERE = ["http://localhost.invalid/"]
"""The only place that a specification may fetch from: none. Ours hold their data."""


def altair() -> Any:
    """The module. InconclusiveError where the extra is not installed."""
    try:
        import altair as module
    except ImportError as error:
        raise InconclusiveError(f"{NEEDS} ({error})") from error
    return module


def _converter() -> Any:
    try:
        import vl_convert
    except ImportError as error:
        raise InconclusiveError(f"{NEEDS} ({error})") from error
    return vl_convert


def check_drawable() -> None:
    """Raises InconclusiveError where a picture could not be drawn, before work is done."""
    from importlib.util import find_spec

    if lost := [name for name in ("altair", "vl_convert") if find_spec(name) is None]:
        raise InconclusiveError(f"{NEEDS} (no module {' and '.join(lost)})")


def svg_of(spec: Spec) -> str:
    """One SVG. Text in it is escaped by Vega's own writer."""
    try:
        svg: str = _converter().vegalite_to_svg(spec, allowed_base_urls=NOWHERE)
    except ValueError as error:
        raise _not_drawn(error) from error
    return svg if svg.endswith("\n") else svg + "\n"


def png_of(spec: Spec, scale: float = 1.5) -> bytes:
    """The same as PNG, `scale` pixels to a unit."""
    try:
        png: bytes = _converter().vegalite_to_png(spec, scale=scale, allowed_base_urls=NOWHERE)
    except ValueError as error:
        raise _not_drawn(error) from error
    return png


def _not_drawn(error: ValueError) -> InconclusiveError:
    """What Vega says to numbers that it has no axis for."""
    return InconclusiveError(f"the picture cannot be drawn ({' '.join(str(error).split())[:200]}); use -o md")


def nothing_to_draw(sources: Sequence[str]) -> DescriptionError:
    """For documents of which no picture can be made: code 2, as a wrong file."""
    return DescriptionError.at(", ".join(sources), "", "holds no number that a picture shows; use -o md")
