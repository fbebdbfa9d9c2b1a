"""Requests over time on the planner's machine graph, admission and bytes."""
