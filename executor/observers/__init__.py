"""Witnesses: they look at memory or at the driver, never at our own counters."""
