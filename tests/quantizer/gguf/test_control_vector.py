from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from quantizer.gguf.control_vector import read_control_vector
from quantizer.gguf.errors import ModelFileError
from tests.quantizer.gguf_adapters import control_vector
from tests.quantizer.gguf_files import N_EMBD, N_LAYERS, tiny_llama


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny.gguf")


def test_directions_lie_in_the_rows_of_their_layers(tmp_path: Path, model: Path) -> None:
    directions = read_control_vector(control_vector(tmp_path / "v.gguf"), model)
    assert directions.shape == (N_LAYERS - 1, N_EMBD)
    np.testing.assert_array_equal(directions[0], np.random.default_rng(5).standard_normal(N_EMBD).astype(np.float32))


def test_a_model_is_no_control_vector(model: Path) -> None:
    with pytest.raises(ModelFileError, match="is no control vector"):
        read_control_vector(model, model)


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"n_embd": 32}, "32 numbers for layer 1"),
        ({"layers": (N_LAYERS,)}, f"for layer {N_LAYERS}"),
        ({"layers": (0,)}, "is no direction"),
        ({"layers": ()}, "has no direction"),
        ({"size": float("nan")}, "is not a number"),
        ({"kind": "llama"}, "is no control vector"),
    ],
)
def test_a_vector_for_another_model_or_for_none_is_refused(
    tmp_path: Path, model: Path, changes: dict[str, object], cause: str
) -> None:
    with pytest.raises(ModelFileError, match=cause):
        read_control_vector(control_vector(tmp_path / "v.gguf", **changes), model)  # type: ignore[arg-type]
