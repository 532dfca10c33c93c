from __future__ import annotations

from pathlib import Path

import pytest

from offload.footprint.model import PlannedModel
from quantizer.gguf.header import read_header
from quantizer.gguf.tensor_types import file_type_named
from quantizer.write.quantize_plan import plan
from tests.quantizer.gguf_files import Skeleton


@pytest.mark.parametrize("name", ["Q8_0", "Q4_K_M", "Q2_K"])
def test_another_quantization_has_the_sizes_that_the_quantizer_would_write(tmp_path: Path, name: str) -> None:
    path = Skeleton(n_layers=4).write(tmp_path / "model.gguf")
    header = read_header(path)
    quantized = PlannedModel(header, header.tensors).quantized(file_type_named(name))
    ours = {tensor.name: tensor.n_bytes for tensor in quantized.tensors}
    written = plan(path, file_type_named(name), tmp_path / "out.gguf").tensors
    assert ours == {tensor.output.name: tensor.output.n_bytes for tensor in written}
