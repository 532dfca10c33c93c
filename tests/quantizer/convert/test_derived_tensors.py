from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantizer.checkpoint.config import CheckpointError, Config
from quantizer.convert.derived_tensors import (
    MappedTensor,
    ReorderedColumns,
    StackedTensor,
    TransposedTensor,
    ZeroExtendedTensor,
    grouped_keys,
    grouped_queries,
    grouped_values,
    plus_one,
    rearrange_rows,
    ungrouped,
    unpermute_queries,
)
from quantizer.convert.source_model import FileTensor, RearrangedTensor
from quantizer.gguf.tensor_types import tensor_type_named
from tests.quantizer.memory_source import Memory


def tensor(values: np.ndarray, name: str = "t", kind: str = "F32") -> FileTensor:
    data = values.astype("<f4" if kind == "F32" else "<f2").tobytes()
    return FileTensor(name, values.shape[::-1], tensor_type_named(kind), Memory(data), 0)


@given(n_rows=st.integers(1, 5), n_more=st.integers(0, 5), rows_per_slab=st.integers(1, 12))
def test_rows_and_numbers_that_a_tensor_lacks_are_zeros(n_rows: int, n_more: int, rows_per_slab: int) -> None:
    matrix = np.arange(1, 3 * n_rows + 1, dtype=np.float32).reshape(n_rows, 3)
    for values, axes in ((matrix, ((0, n_more), (0, 0))), (matrix[:, 0], ((0, n_more),))):
        extended = ZeroExtendedTensor(tensor(values), "z", n_rows + n_more)
        whole = np.pad(values, axes)
        slabs = list(extended.slabs(rows_per_slab))
        assert extended.shape == whole.shape[::-1]
        assert b"".join(slabs) == whole.tobytes()
        assert all(len(slab) == extended.shape[0] * 4 * rows_per_slab for slab in slabs[:-1])


@given(n_parts=st.integers(1, 4), n_rows=st.integers(1, 5), rows_per_slab=st.integers(1, 12))
def test_a_stack_holds_its_parts_in_order_however_it_is_cut(n_parts: int, n_rows: int, rows_per_slab: int) -> None:
    whole = np.arange(n_parts * n_rows * 3, dtype=np.float32).reshape(n_parts, n_rows, 3)
    stack = StackedTensor("s", tuple(tensor(part) for part in whole))
    slabs = list(stack.slabs(rows_per_slab))
    assert stack.shape == (3, n_rows, n_parts)
    assert b"".join(slabs) == whole.tobytes()
    assert all(len(slab) == rows_per_slab * 12 for slab in slabs[:-1])
    assert len(slabs) == -(-n_parts * n_rows // rows_per_slab)


@pytest.mark.parametrize("kind", ["F32", "F16"])
def test_rows_of_a_matrix_transpose_into_columns_however_they_are_cut(kind: str) -> None:
    whole = np.arange(28, dtype=np.float32).reshape(7, 4)
    turned = TransposedTensor(tensor(whole, kind=kind).rows(2, 7), "turned")
    expected = whole[2:7].T.astype("<f4" if kind == "F32" else "<f2").tobytes()
    assert turned.shape == (5, 4)
    assert b"".join(turned.slabs(3)) == expected
    assert len(list(turned.slabs(3))) == 2


@pytest.mark.parametrize("kind", ["F32", "F16"])
def test_columns_in_another_order_are_so_in_every_row(kind: str) -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    turned = ReorderedColumns(tensor(values, kind=kind), "t", np.array([2, 0, 3, 1]))
    expected = values[:, [2, 0, 3, 1]].astype("<f4" if kind == "F32" else "<f2").tobytes()
    assert b"".join(turned.slabs(2)) == expected


def test_parts_of_different_types_do_not_stack() -> None:
    with pytest.raises(CheckpointError, match="b and a differ in shape or type"):
        StackedTensor("s", (tensor(np.ones((2, 3)), "a"), tensor(np.ones((2, 3)), "b", "F16")))


def test_a_norm_of_half_precision_gains_its_one_in_single_precision() -> None:
    norm = MappedTensor(tensor(np.array([0.001, -1.0, 2.0]), kind="F16"), "n", plus_one)
    values = np.frombuffer(b"".join(norm.slabs(1)), "<f4")
    assert norm.stored.name == "F32"
    assert np.array_equal(values, np.array([0.001, -1.0, 2.0]).astype(np.float16).astype(np.float32) + np.float32(1))


@pytest.mark.parametrize("rows_per_slab", [1, 5])
def test_a_rearranged_bias_comes_in_one_row_however_it_is_cut(rows_per_slab: int) -> None:
    bias = rearrange_rows(tensor(np.arange(8.0)), "b", unpermute_queries, Config({"num_attention_heads": 2}))
    (row,) = bias.slabs(rows_per_slab)
    assert np.frombuffer(row, "<f4").tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_a_fused_matrix_splits_into_the_heads_that_were_fused() -> None:
    config = Config({"num_attention_heads": 4, "num_key_value_heads": 2})
    query, key, value = (np.arange(n * 5, dtype=np.float32).reshape(n, 5) + 1000 * n for n in (16, 8, 8))
    groups = [
        part for g in range(2) for part in (query[g * 8 : g * 8 + 8], key[g * 4 : g * 4 + 4], -value[g * 4 : g * 4 + 4])
    ]
    fused = tensor(np.concatenate(groups))
    n_rows = fused.shape[1]

    def taken(order: np.ndarray) -> np.ndarray:
        part = RearrangedTensor(fused, "part", (5, len(order)), order)
        return np.frombuffer(b"".join(part.slabs(3)), "<f4").reshape(-1, 5)

    assert np.array_equal(taken(grouped_queries(config, n_rows)), query[unpermute_queries(config, 16)])
    assert np.array_equal(np.sort(taken(grouped_keys(config, n_rows)), axis=0), key)
    assert np.array_equal(taken(grouped_values(config, n_rows)), -value)


def test_a_fused_matrix_of_other_heads_is_refused() -> None:
    config = Config({"num_attention_heads": 4, "num_key_value_heads": 3})
    with pytest.raises(CheckpointError, match="do not split into 10"):
        grouped_values(config, 40)


def test_heads_one_after_another_become_queries_then_keys_then_values() -> None:
    config = Config({"num_attention_heads": 4, "num_key_value_heads": 2})
    # two rows a head; a group has two queries, their key and their value
    order = ungrouped(config, 16).tolist()
    assert order == [0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15]
