"""llama2.c checkpoints, versions 0 and 1 (float32): header and size in, tensor table out. No tensor is read.

Layouts are those of karpathy/llama2.c (run.c and export.py, commit 350e04f), all little endian.
Version 0 has no magic: it is believed only when the seven dimensions make sense and give the file's size to the byte.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import BinaryIO

from fleet.checkpoints.source import digest_file, model_name, read_exactly, shown
from fleet.errors import DescriptionError, Fault
from fleet.model import Model, Role, TensorSpec

MAGIC = 0x616B3432
V0_HEADER_BYTES = 28
V1_HEADER_BYTES = 256

_FIELDS = ("dim", "hidden_dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "seq_len")
# Far above any model that was ever trained in this format, far below what makes a file size absurd.
_LARGEST = {
    "dim": 1 << 17,
    "hidden_dim": 1 << 20,
    "n_layers": 1 << 12,
    "n_heads": 1 << 12,
    "n_kv_heads": 1 << 12,
    "vocab_size": 1 << 22,
    "seq_len": 1 << 24,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Dimensions:
    """The seven header fields, llama2.c's names, and whether the classifier is the embedding."""

    dim: int
    hidden_dim: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    vocab_size: int
    seq_len: int
    shared_classifier: bool

    @property
    def head_dim(self) -> int:
        return self.dim // self.n_heads

    @property
    def kv_dim(self) -> int:
        return self.n_kv_heads * self.head_dim

    def __str__(self) -> str:
        sizes = ", ".join(f"{name} {getattr(self, name):,}" for name in _FIELDS)
        return f"{sizes}, {'shared' if self.shared_classifier else 'own'} classifier"


def tensor_rows(sizes: Dimensions, version: int) -> list[tuple[str, tuple[int, ...], Role, bool]]:
    """(name, shape, role, first axis is the layer) of every tensor, in the file order of `version` 0 or 1."""
    d, h, layers, kd = sizes.dim, sizes.hidden_dim, sizes.n_layers, sizes.kv_dim
    embedding: tuple[str, tuple[int, ...], Role, bool] = ("token_embedding", (sizes.vocab_size, d), "embedding", False)
    rms_att: tuple[str, tuple[int, ...], Role, bool] = ("rms_att", (layers, d), "norm", True)
    rms_ffn: tuple[str, tuple[int, ...], Role, bool] = ("rms_ffn", (layers, d), "norm", True)
    rms_final: tuple[str, tuple[int, ...], Role, bool] = ("rms_final", (d,), "norm", False)
    attention: list[tuple[str, tuple[int, ...], Role, bool]] = [
        ("wq", (layers, d, d), "projection", True),
        ("wk", (layers, kd, d), "projection", True),
        ("wv", (layers, kd, d), "projection", True),
        ("wo", (layers, d, d), "projection", True),
    ]
    feed_forward: list[tuple[str, tuple[int, ...], Role, bool]] = [
        ("w1", (layers, h, d), "projection", True),
        ("w2", (layers, d, h), "projection", True),
        ("w3", (layers, h, d), "projection", True),
    ]
    if version == 0:
        table = (sizes.seq_len, sizes.head_dim // 2)
        rows = [embedding, rms_att, *attention, rms_ffn, *feed_forward, rms_final]
        rows += [("freq_cis_real", table, "unread", False), ("freq_cis_imag", table, "unread", False)]
    else:
        rows = [rms_att, rms_ffn, rms_final, embedding, *attention, *feed_forward]
    if not sizes.shared_classifier:
        rows.append(("wcls", (sizes.vocab_size, d), "classifier", False))
    return rows


def tensor_table(sizes: Dimensions, version: int) -> tuple[TensorSpec, ...]:
    """The tensor table with each tensor's first byte in the file."""
    offset = V0_HEADER_BYTES if version == 0 else V1_HEADER_BYTES
    table = []
    for name, shape, role, per_layer in tensor_rows(sizes, version):
        table.append(TensorSpec(name=name, shape=shape, role=role, per_layer=per_layer, offset=offset))
        offset += table[-1].nbytes
    return tuple(table)


def read_llama2c(handle: BinaryIO, size: int, path: str) -> Model:
    """The model of an open llama2.c checkpoint of `size` bytes.

    Raises DescriptionError: version 2 or later, truncated, trailing bytes, dimensions that make no sense.
    """
    head = read_exactly(handle, V1_HEADER_BYTES, path)
    marked = len(head) >= 4 and struct.unpack_from("<I", head)[0] == MAGIC
    sizes, header_bytes = _read_v1(head, path) if marked else _read_v0(head, path)
    version = int(marked)
    table = tensor_table(sizes, version)
    _check_size(sizes, table, size, path)
    return Model(
        name=model_name(path),
        family="llama",
        format="llama2c-v1" if marked else "llama2c-v0",
        dim=sizes.dim,
        hidden_dim=sizes.hidden_dim,
        n_layers=sizes.n_layers,
        n_heads=sizes.n_heads,
        n_kv_heads=sizes.n_kv_heads,
        head_dim=sizes.head_dim,
        vocab_size=sizes.vocab_size,
        seq_len=sizes.seq_len,
        shared_classifier=sizes.shared_classifier,
        tensors=table,
        path=path,
        digest=digest_file(handle, size, head[:header_bytes], path),
    )


def _read_v0(head: bytes, path: str) -> tuple[Dimensions, int]:
    if len(head) < V0_HEADER_BYTES:
        raise DescriptionError.at(
            shown(path),
            "header",
            f"is truncated: {len(head)} bytes, a llama2.c header has {V0_HEADER_BYTES}; copy the file again",
        )
    values = list(struct.unpack_from("<7i", head))
    # A negative vocabulary is version 0's sign for a classifier of its own.
    shared = values[5] > 0
    values[5] = abs(values[5])
    return _checked(values, shared, path, "is no llama2.c checkpoint (version 0 has no magic), or a damaged one"), 28


def _read_v1(head: bytes, path: str) -> tuple[Dimensions, int]:
    told = shown(path)
    version = struct.unpack_from("<i", head, 4)[0] if len(head) >= 8 else None
    if version == 2:
        raise DescriptionError.at(
            told,
            "version",
            "is a llama2.c version 2 checkpoint (int8 groups, Q8_0): not read; export it in float with version 0 or 1",
        )
    if len(head) < V1_HEADER_BYTES:
        raise DescriptionError.at(
            told, "header", f"is truncated: {len(head)} bytes, this header has {V1_HEADER_BYTES}; copy the file again"
        )
    if version != 1:
        raise DescriptionError.at(
            told, "version", f"is llama2.c version {version}: only 0 and 1 (float) are read; export it again"
        )
    values = list(struct.unpack_from("<7i", head, 8))
    faults = []
    if head[36] > 1:
        faults.append(Fault(told, "shared_classifier", f"is {head[36]}: must be 0 or 1; export the checkpoint again"))
    if any(head[37:]):
        faults.append(Fault(told, "header", "bytes 37 to 255 must be zero: the header is damaged; copy the file again"))
    return _checked(values, head[36] == 1, path, "the header is damaged", faults), V1_HEADER_BYTES


def _checked(values: list[int], shared: bool, path: str, verdict: str, found: list[Fault] | None = None) -> Dimensions:
    """Bounds first, divisibility after: products of absurd numbers are never formed."""
    told = shown(path)
    faults = list(found or ())
    named = dict(zip(_FIELDS, values, strict=True))
    for name, value in named.items():
        if not 1 <= value <= _LARGEST[name]:
            faults.append(Fault(told, name, f"is {value:,}: must lie in 1..{_LARGEST[name]:,}; {verdict}"))
    if not faults:
        faults += _indivisible(named, told)
    if faults:
        raise DescriptionError(faults)
    return Dimensions(**named, shared_classifier=shared)


def _indivisible(named: dict[str, int], told: str) -> list[Fault]:
    faults = []
    dim, heads, kv_heads = named["dim"], named["n_heads"], named["n_kv_heads"]
    if dim % heads:
        faults.append(Fault(told, "dim", f"{dim:,} is no multiple of n_heads {heads:,}; export the checkpoint again"))
    elif (dim // heads) % 2:
        faults.append(
            Fault(told, "dim", f"gives an odd head size {dim // heads}: RoPE rotates pairs; it cannot be executed")
        )
    if heads % kv_heads:
        faults.append(
            Fault(told, "n_heads", f"{heads:,} is no multiple of n_kv_heads {kv_heads:,}; export the checkpoint again")
        )
    return faults


def _check_size(sizes: Dimensions, table: tuple[TensorSpec, ...], size: int, path: str) -> None:
    last = table[-1]
    expected = (last.offset or 0) + last.nbytes
    if size == expected:
        return
    if size < expected:
        cut = next(t.name for t in table if (t.offset or 0) + t.nbytes > size)
        wrong = f"is truncated: it ends {expected - size:,} bytes early, within {cut}"
    else:
        wrong = f"has {size - expected:,} trailing bytes"
    raise DescriptionError.at(
        shown(path),
        "size",
        f"{wrong}: expected {expected:,} bytes, found {size:,}, for {sizes}; copy or export the file again",
    )
