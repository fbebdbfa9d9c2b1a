"""The kernels for a checkpoint's own types, by name, with the kinds of their parameters."""

from __future__ import annotations

__all__ = ["STORED"]

STORED: dict[str, str] = {
    "stored_rmsnorm": "pppii",
    "stored_bias": "ppi",
    "stored_rope": "ppppiiii",
    "stored_column": "ppiiiii",
    "stored_embed": "ppppii",
    "stored_matvec": "pppiii",
    "stored_attention": "pppppiiii",
    "stored_store": "ppq",
}
"""As `executor.cuda.kernels.PARAMETERS`; behind each name comes the type: `_fp32`, `_bf16` or `_fp16`."""
