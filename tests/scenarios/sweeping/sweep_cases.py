"""Sweep files for the tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
ADMIT: dict[str, Any] = {
    "schema": "kvwaybill/sweep/1",
    "question": "admit",
    "base": "two-gpu",
    "grid": {
        "fleet": ["two-gpu-nvlink", "two-gpu-tight", "two-gpu-staged", "two-gpu-unknown"],
        "kv_extent": ["filled", "allocated"],
    },
}
SIMULATE: dict[str, Any] = {
    "schema": "kvwaybill/sweep/1",
    "question": "simulate",
    "base": "chat",
    "list": [
        {"prefill.devices": "gpu:0", "decode.devices": "gpu:4"},
        {"prefill.devices": "gpu:0-1", "decode.devices": "gpu:4-5"},
    ],
    "grid": {"arrivals.requests": ["60"], "arrivals.rate": ["5", "60"]},
}


def write(folder: Path, document: Any, name: str = "sweep.yaml") -> Path:
    """The document as a file; JSON is YAML, too."""
    path = folder / name
    path.write_text(json.dumps(document, indent=1))
    return path
