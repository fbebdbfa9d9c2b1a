"""Pictures of a fleet: what is drawn (`scene`), where (`layout`, `routes`, `labels`), how it is written (`svg`)."""

from __future__ import annotations

from scenarios.pictures.draw import draw, scene_of
from scenarios.pictures.mermaid import mermaid_text
from scenarios.pictures.places import picture_document
from scenarios.pictures.svg import svg_text

__all__ = ["draw", "mermaid_text", "picture_document", "scene_of", "svg_text"]
