"""The layout packed16: packing is its own inverse, padding is never touched, the index maps agree with the packing."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.packed.layout import (
    KV_TENSORS,
    LANES,
    Packed,
    kv_index,
    matrix_index,
    pack,
    packed_kv,
    packed_weight,
    padding,
    read_kv,
    unpack,
    write_kv,
)

POISON = np.uint32(0x7FA12345)
extents = st.integers(1, 40)


def poisoned(shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    return np.full(shape, POISON, np.uint32).view(np.float32)


def numbered(*shape: int) -> npt.NDArray[np.float32]:
    """A different value in every place."""
    return np.arange(1, 1 + int(np.prod(shape)), dtype=np.float32).reshape(shape)


def words(array: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    return np.ascontiguousarray(array).view(np.uint32)


@given(lead=st.sampled_from([(), (1,), (3,)]), rows=extents, n=extents)
def test_unpacking_gives_back_what_was_packed_and_padding_keeps_its_poison(
    lead: tuple[int, ...], rows: int, n: int
) -> None:
    wire = numbered(*lead, rows, n)
    packed = poisoned(Packed(lead, rows, n).shape)
    pack(wire, packed)
    assert np.array_equal(unpack(packed, rows), wire)
    assert (words(padding(packed, rows)) == POISON).all()
    assert np.count_nonzero(words(packed) != POISON) == wire.size


@given(lead=st.sampled_from([(), (2,), (2, 3)]), rows=extents, n=extents)
def test_sizes_are_those_of_the_arrays(lead: tuple[int, ...], rows: int, n: int) -> None:
    packed = Packed(lead, rows, n)
    array = poisoned(packed.shape)
    assert packed.nbytes == array.nbytes
    assert packed.wire_bytes == numbered(*lead, rows, n).nbytes
    assert packed.padding_bytes == padding(array, rows).size * 4 == packed.nbytes - packed.wire_bytes
    assert packed.padding_bytes < packed.nbytes // packed.blocks + 1


@given(rows=extents, n=extents)
def test_the_index_of_a_matrix_finds_each_element(rows: int, n: int) -> None:
    wire, packed = numbered(rows, n), poisoned(Packed((), rows, n).shape)
    pack(wire, packed)
    assert np.array_equal(packed.reshape(-1)[matrix_index(rows, n)], wire)


@given(data=st.data(), tensor=st.sampled_from(KV_TENSORS), heads=st.integers(1, 3), head_dim=extents, positions=extents)
def test_positions_written_in_wire_order_are_read_back_and_nothing_else_is_written(
    data: st.DataObject, tensor: Any, heads: int, head_dim: int, positions: int
) -> None:
    p0 = data.draw(st.integers(0, positions))
    p1 = data.draw(st.integers(p0, positions))
    shape = packed_kv(tensor, 1, positions, heads, head_dim)
    layer = poisoned(shape.shape)[0]
    wire = numbered(p1 - p0, heads * head_dim)
    write_kv(layer, kv_index(tensor, shape, p0, p1), wire)
    assert np.count_nonzero(words(layer) != POISON) == wire.size
    assert np.array_equal(read_kv(layer, kv_index(tensor, shape, p0, p1)), wire)
    assert (words(padding(layer, shape.rows)) == POISON).all()


@given(tensor=st.sampled_from(KV_TENSORS), heads=st.integers(1, 3), head_dim=extents, positions=extents)
def test_a_cache_is_the_packing_of_one_matrix_a_head(tensor: Any, heads: int, head_dim: int, positions: int) -> None:
    wire = numbered(positions, heads, head_dim)
    shape = packed_kv(tensor, 1, positions, heads, head_dim)
    by_index, by_packing = poisoned(shape.shape), poisoned(shape.shape)
    write_kv(by_index[0], kv_index(tensor, shape, 0, positions), wire.reshape(positions, -1))
    order = (1, 0, 2) if tensor == "k" else (1, 2, 0)
    pack(np.ascontiguousarray(wire.transpose(order))[None], by_packing)
    assert np.array_equal(words(by_index), words(by_packing))


def test_a_page_is_one_lane_a_position() -> None:
    shape = packed_kv("k", 2, 20, 3, 8)
    assert shape.shape == (2, 3, 2, 8, LANES)
    assert packed_kv("v", 2, 20, 3, 8).shape == (2, 3, 1, 20, LANES)
    index = kv_index("k", shape, 16, 18)
    assert index[0, 0] == 8 * LANES  # position 16 opens the second page
    assert index[1, 0] == 8 * LANES + 1
    assert index[0, 8] == (2 * 8 + 8) * LANES  # the next head's second page


def test_vectors_stay_plain() -> None:
    assert packed_weight((64,)) is None
    assert packed_weight((5, 172, 64)) == Packed((5,), 172, 64)


def test_refuses_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="packs into"):
        pack(numbered(17, 3), poisoned((1, 3, 16)))
    with pytest.raises(ValueError, match="17 rows"):
        unpack(poisoned((1, 3, 16)), 17)
    with pytest.raises(ValueError, match=r"positions 3\.\.4"):
        kv_index("v", packed_kv("v", 1, 4, 1, 8), 3, 5)
    with pytest.raises(ValueError, match="strided"):
        write_kv(poisoned((16, 8, 2, 1)).T, kv_index("k", packed_kv("k", 1, 20, 1, 8), 0, 1), numbered(1, 8))
