"""What serving engines move from prefill to decode: one table, one row an engine."""

from planner.engines.table import ENGINES, Engine, engine_extent, engine_faults, engine_unknown

__all__ = ["ENGINES", "Engine", "engine_extent", "engine_faults", "engine_unknown"]
