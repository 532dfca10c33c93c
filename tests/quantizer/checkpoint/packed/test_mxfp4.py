from __future__ import annotations

import gguf
import numpy as np
import pytest

from quantizer.errors import CheckpointError
from tests.quantizer.packers import mxfp4, read


def test_blocks_become_ggml_blocks_of_the_same_values() -> None:
    packed = mxfp4(np.random.default_rng(0), "experts.down_proj", (3, 8, 96))
    blocks = read(packed.config, packed.tensors)["experts.down_proj"]
    values = gguf.dequantize(blocks.reshape(3, 8, -1), gguf.GGMLQuantizationType.MXFP4)
    assert np.array_equal(values, packed.weight)


def test_an_exponent_that_is_no_number_is_refused() -> None:
    packed = mxfp4(np.random.default_rng(0), "experts.down_proj", (3, 8, 96))
    packed.tensors["experts.down_proj_scales"][1][1, 2, 0] = 255
    with pytest.raises(CheckpointError, match=r"experts\.down_proj holds NaN"):
        read(packed.config, packed.tensors)
