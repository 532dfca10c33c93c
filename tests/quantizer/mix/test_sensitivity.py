from __future__ import annotations

import numpy as np
import pytest

from quantizer.convert.source_model import FileTensor
from quantizer.gguf.tensor_types import tensor_type_named
from quantizer.mix.imatrix import ColumnWeights
from quantizer.mix.search import candidates, distortions
from quantizer.write.dtype_conversion import encode, to_float32
from tests.quantizer.memory_source import Memory

F16, Q8_0 = tensor_type_named("F16"), tensor_type_named("Q8_0")
N_COLUMNS = 256


def tensor_of(rows: np.ndarray, n_matrices: int = 1) -> FileTensor:
    data = rows.astype("<f2").tobytes()
    shape = (rows.shape[1], len(rows) // n_matrices, n_matrices)
    return FileTensor("blk.0.ffn_up.weight", shape, F16, Memory(data), 0)


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    return np.random.default_rng(5).standard_normal((512, N_COLUMNS)).astype(np.float16)


def test_a_small_tensor_is_measured_whole(rows: np.ndarray) -> None:
    original = rows.astype(np.float32)
    for kind in map(tensor_type_named, ("Q4_K", "Q5_0")):
        (measured,) = distortions(tensor_of(rows), [kind], None, 1)
        bent = to_float32(encode(original, kind, "x"), kind, N_COLUMNS)
        assert measured == pytest.approx(float(np.square(original - bent).sum()), rel=1e-4)


def test_rows_of_a_large_tensor_stand_for_all_of_it(rows: np.ndarray) -> None:
    kinds = [tensor_type_named(name) for name in ("Q3_K", "Q4_K", "Q6_K")]
    large = np.random.default_rng(6).standard_normal((4096, N_COLUMNS))
    ratios = [np.divide(*distortions(tensor_of(of), kinds, None, 2)[:2]) for of in (rows, large)]
    assert ratios[1] == pytest.approx(ratios[0], rel=0.05)


@pytest.mark.slow
def test_fewer_bits_bend_more_and_what_is_stored_not_at_all(rows: np.ndarray) -> None:
    kinds = candidates(N_COLUMNS, F16, has_weights=False)
    by_name = dict(zip([kind.name for kind in kinds], distortions(tensor_of(rows), kinds, None, 1), strict=True))
    k_types = [by_name[name] for name in ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "F16")]
    assert k_types == sorted(k_types, reverse=True)
    assert by_name["F16"] == 0


def test_errors_count_as_their_column_and_their_expert_weigh(rows: np.ndarray) -> None:
    kind = tensor_type_named("Q5_0")
    weights = np.ones((2, N_COLUMNS), np.float32)
    both = distortions(tensor_of(rows, 2), [kind], ColumnWeights(weights, 256), 1)[0]
    weights[1] = 0
    first = distortions(tensor_of(rows, 2), [kind], ColumnWeights(weights, 256), 1)[0]
    assert first == pytest.approx(both / 2, rel=0.1)


def test_types_that_need_a_matrix_or_do_not_fit_are_no_candidates() -> None:
    with_matrix, without = (candidates(256, F16, has_weights=has) for has in (True, False))
    assert {kind.name for kind in with_matrix} - {kind.name for kind in without} == {
        *("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS")
    }
    assert {kind.block_size for kind in candidates(96, F16, has_weights=True)} == {1, 32}
    assert [kind.name for kind in candidates(7, F16, has_weights=True)] == ["F16"]


def test_eight_bits_and_full_floats_end_where_they_lose_nothing() -> None:
    assert candidates(256, Q8_0, has_weights=True)[-1] == Q8_0
    assert candidates(256, tensor_type_named("F32"), has_weights=True)[-1] == F16
    assert candidates(256, tensor_type_named("BF16"), has_weights=True)[-1].name == "BF16"
