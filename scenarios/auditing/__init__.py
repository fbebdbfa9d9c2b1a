"""What a pasted log says without a plan: sizes, layers, ranks where arithmetic allows it, and what cannot be true."""

from __future__ import annotations

from scenarios.auditing.audit import Asked, audit
from scenarios.auditing.models import Narrowed

__all__ = ["Asked", "Narrowed", "audit"]
