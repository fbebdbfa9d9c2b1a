"""Reports of finished documents: Markdown, HTML, SVG, PNG, JUnit, GitHub annotations, Chrome traces.

Each is a pure function from documents to text. What a report says is gathered once (`sections`, `gates`, `figures`) and
written by each format, so that all say the same. Altair and vl-convert (extra `[report]`) are loaded where a picture is
drawn, and nowhere else.
"""

from __future__ import annotations
