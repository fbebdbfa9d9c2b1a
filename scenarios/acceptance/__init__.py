"""Acceptance of a split on two physical GPUs: predicted first, run, witnessed by the driver, written down."""
