"""What a pasted log says without a plan: sizes, layers, ranks where arithmetic allows it, and what cannot be true."""

from __future__ import annotations

from scenarios.auditing.audit import Asked, audit

__all__ = ["Asked", "audit"]
