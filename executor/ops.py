"""The operations that a backend must compute, as data: which operands, of which shapes, with which scalars.

A kernel trusts its shapes, and a wrong one reads a neighbour's memory; so this table is asked before every call.
The table loads neither numpy nor a compiler. Order of float operations: see `executor.kernels`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from fleet.errors import BackendError

Shape = tuple[int, ...]
STORED = "fp32 bf16 fp16"
"""What a checkpoint may store: read as it lies, in sums of f32."""
Scalars = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OpSpec:
    """One operation. `arrays` are the output and then the operands: name, extents by letter, dtype (or several).

    A letter must mean the same extent throughout a call; a digit is that extent. T tokens of the call, S positions of a
    cache or table, h = head_dim / 2. `written` counts the leading arrays that the operation writes. `counted`: its
    dispatch is an event. `distinct`: the output must not overlap an operand. `packed`: which arrays may be
    packed (`executor.packing`), all of them or none.
    """

    arrays: tuple[tuple[str, str, str], ...]
    scalars: tuple[str, ...] = ()
    written: int = 1
    counted: bool = False
    distinct: bool = False
    packed: tuple[int, ...] = ()


OPS: dict[str, OpSpec] = {
    "embed": OpSpec(
        (("x", "T D", "fp32"), ("table", "V D", STORED), ("tokens", "T", "int32")), distinct=True, packed=(1,)
    ),
    "rmsnorm": OpSpec((("out", "T n", "fp32"), ("x", "T n", "fp32"), ("weight", "n", "fp32"))),
    "matmul": OpSpec(
        (("out", "T d", "fp32"), ("x", "T n", "fp32"), ("w", "d n", STORED)), counted=True, distinct=True, packed=(2,)
    ),
    "rope": OpSpec(
        (("q", "T D", "fp32"), ("k", "T K", "fp32"), ("cos", "S h", "fp32"), ("sin", "S h", "fp32")),
        ("pos0", "head_dim"),
        written=2,
    ),
    "attention": OpSpec(
        (
            ("out", "T D", "fp32"),
            ("q", "T D", "fp32"),
            ("k_cache", "S K", STORED),
            ("v_cache", "S K", STORED),
            ("att", "A S", "fp32"),
        ),
        ("pos0", "n_heads", "n_kv_heads", "head_dim"),
        distinct=True,
        packed=(2, 3),
    ),
    "store": OpSpec((("cache", "T K", STORED), ("rows", "T K", "fp32")), distinct=True, packed=(0,)),
    "add": OpSpec((("x", "T D", "fp32"), ("y", "T D", "fp32"))),
    "swiglu": OpSpec((("h1", "T H", "fp32"), ("h3", "T H", "fp32"))),
    "argmax": OpSpec((("out", "1", "int32"), ("logits", "V", "fp32"))),
    "rope_table": OpSpec((("cos", "S h", "fp32"), ("sin", "S h", "fp32")), ("head_dim",), written=2),
    # Of checkpoints that are not llama2.c's. Numbers that are no integers are handed over as the bits of an f32.
    "rmsnorm_eps": OpSpec((("out", "T n", "fp32"), ("x", "T n", "fp32"), ("weight", "n", STORED)), ("eps_bits",)),
    "bias": OpSpec((("x", "T n", "fp32"), ("row", "n", STORED))),
    "rope_half": OpSpec(
        (("q", "T D", "fp32"), ("k", "T K", "fp32"), ("cos", "S h", "fp32"), ("sin", "S h", "fp32")),
        ("pos0", "head_dim"),
        written=2,
    ),
    "rope_column": OpSpec(
        (("cos", "S h", "fp32"), ("sin", "S h", "fp32")), ("column", "frequency_bits", "scale_bits"), written=2
    ),
}


def op_spec(op: str) -> OpSpec:
    """The specification of `op`; BackendError naming the known ones when there is none."""
    spec = OPS.get(op)
    if spec is None:
        raise BackendError(f"no operation {op!r}; known: {', '.join(OPS)}")
    return spec


def ordered_scalars(op: str, given: dict[str, int]) -> Scalars:
    """The scalars of a call in the order of the table; BackendError when one is missing, unknown or no integer."""
    names = op_spec(op).scalars
    if given.keys() != set(names):
        wanted = ", ".join(names) or "none"
        raise BackendError(f"{op}: scalars {', '.join(given) or 'none'} given; it takes {wanted}")
    return tuple(int(given[name]) for name in names)


@lru_cache(maxsize=4096)
def check_shapes(op: str, shapes: tuple[Shape, ...], dtypes: tuple[str, ...], scalars: Scalars) -> None:
    """Raise BackendError unless the arrays of a call (output first) fit the table and each other.

    `scalars` are those of the table without `pos0`, whose bound depends on the call: see `check_positions`.
    """
    spec = op_spec(op)
    if len(shapes) != len(spec.arrays):
        raise BackendError(f"{op}: {len(shapes)} arrays given; it takes {', '.join(a[0] for a in spec.arrays)}")
    extents: dict[str, int] = {}
    for (name, letters, dtype), shape, given in zip(spec.arrays, shapes, dtypes, strict=True):
        if given not in dtype.split():
            raise BackendError(f"{op}: {name} is {given}; it must be {' or '.join(dtype.split())}")
        wanted = letters.split()
        if len(shape) != len(wanted):
            raise BackendError(f"{op}: {name} has shape {shape}; it must be [{', '.join(wanted)}]")
        for letter, extent in zip(wanted, shape, strict=True):
            expected = int(letter) if letter.isdigit() else extents.setdefault(letter, extent)
            if extent != expected:
                raise BackendError(f"{op}: {name} has shape {shape}, where {letter} must be {expected}")
    named = dict(zip((s for s in spec.scalars if s != "pos0"), scalars, strict=True))
    _check_heads(op, extents, dtypes, named)


def check_positions(op: str, pos0: int, n_tokens: int, n_positions: int) -> None:
    """Raise BackendError unless positions pos0 .. pos0 + n_tokens - 1 exist in a table of `n_positions`."""
    if pos0 < 0 or pos0 + n_tokens > n_positions:
        raise BackendError(f"{op}: positions {pos0}..{pos0 + n_tokens - 1} of a cache or table that has {n_positions}")


def _check_heads(op: str, extents: dict[str, int], dtypes: tuple[str, ...], scalars: dict[str, int]) -> None:
    head_dim = scalars.get("head_dim")
    if op == "rope_column" and not 0 <= scalars["column"] < extents["h"]:
        raise BackendError(f"{op}: column {scalars['column']} of tables of width {extents['h']}")
    if op == "attention" and len(set(dtypes[2:4])) > 1:
        raise BackendError(f"{op}: K is {dtypes[2]} and V {dtypes[3]}; they must be of one type")
    if head_dim is None:
        return
    if head_dim <= 0 or head_dim % 2:
        raise BackendError(f"{op}: head_dim {head_dim} must be even and above 0")
    if "h" in extents and extents["h"] * 2 != head_dim:
        raise BackendError(f"{op}: tables of width {extents['h']} do not fit head_dim {head_dim}")
    for letter in ("D", "K"):
        if letter in extents and extents[letter] % head_dim:
            raise BackendError(f"{op}: a row of {extents[letter]} is not a whole number of heads of {head_dim}")
    if op in ("rope", "rope_half") and extents["K"] > extents["D"]:
        raise BackendError(f"{op}: rows of k ({extents['K']}) are longer than those of q ({extents['D']})")
    if op == "attention":
        n_heads, n_kv_heads = scalars["n_heads"], scalars["n_kv_heads"]
        if n_kv_heads <= 0 or n_heads <= 0 or n_heads % n_kv_heads:
            raise BackendError(f"{op}: {n_heads} heads cannot share {n_kv_heads} KV heads evenly")
        if (extents["D"], extents["K"], extents["A"]) != (n_heads * head_dim, n_kv_heads * head_dim, n_heads):
            raise BackendError(
                f"{op}: rows of {extents['D']} and {extents['K']} and {extents['A']} rows of scratch do not fit "
                f"{n_heads} heads and {n_kv_heads} KV heads of {head_dim}"
            )
