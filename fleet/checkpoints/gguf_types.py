"""ggml's tensor types and their block sizes, and the value types of GGUF metadata.

Sizes are those of ggml's `ggml_type_size` and `ggml_blck_size`, one row a type (ggml/src/ggml.c; the format page is
ggml/docs/gguf.md). A type that is not listed has no size here: unknown, never guessed.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GgmlType:
    """One tensor type: `block` elements of the innermost axis are stored in `nbytes` bytes."""

    name: str
    block: int
    nbytes: int


_ROWS: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
}
GGML_TYPES: dict[int, GgmlType] = {number: GgmlType(*row) for number, row in _ROWS.items()}
"""Every type whose size is known, by its number in the file."""

UNSIZED = {
    9: "Q8_1",
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}
"""Numbers without one size: Q8_1's block had 40 bytes and later 36; the others were withdrawn from ggml."""


def type_name(number: int) -> str:
    """The name of a tensor type, or `type N` for a number that is not known."""
    known = GGML_TYPES.get(number)
    return known.name if known else UNSIZED.get(number, f"type {number}")


STRING = 8
ARRAY = 9
BOOL = 7
SCALARS: dict[int, tuple[str, int]] = {
    0: ("B", 1),
    1: ("b", 1),
    2: ("H", 2),
    3: ("h", 2),
    4: ("I", 4),
    5: ("i", 4),
    6: ("f", 4),
    BOOL: ("B", 1),
    10: ("Q", 8),
    11: ("q", 8),
    12: ("d", 8),
}
"""`struct` letter and bytes of each fixed-size metadata value type."""
