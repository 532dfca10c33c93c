from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from quantizer.checkpoint.packed.methods import unpack_checkpoint
from quantizer.checkpoint.safetensors import read_checkpoint
from quantizer.convert.source_model import FileTensor

# written by tests/bench/models/packed_references.py with the libraries themselves
REFERENCES = sorted((Path(__file__).parent / "references").iterdir())


def numbers(tensor: FileTensor) -> np.ndarray:
    return np.frombuffer(b"".join(tensor.slabs(3)), "<f4").reshape(tuple(reversed(tensor.shape)))


@pytest.mark.parametrize("folder", REFERENCES, ids=lambda folder: folder.name)
def test_what_the_library_packed_is_read_as_the_library_reads_it(folder: Path) -> None:
    tensors = unpack_checkpoint(read_checkpoint(folder)).tensors
    names = [name for name in tensors if f"expected.{name}" in tensors]
    assert len(names) * 2 == len(tensors) >= 12
    for name in names:
        expected = numbers(tensors[f"expected.{name}"])
        np.testing.assert_allclose(numbers(tensors[name]), expected, rtol=0, atol=0, err_msg=name)
