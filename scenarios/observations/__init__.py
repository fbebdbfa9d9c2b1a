"""What real engines and profilers print of KV transfers, read as observations: one module a format, known by content.

A text format is recognised by its lines, wherever they stand in a log; a binary one by its first bytes. A file of
several engines is refused, since nobody could say whose bytes were summed. `read_observations` is the way in.
"""

from __future__ import annotations

from scenarios.observations.observation import Interval, Observation, Reading, printed
from scenarios.observations.registry import format_names, read_observations

__all__ = ["Interval", "Observation", "Reading", "format_names", "printed", "read_observations"]
