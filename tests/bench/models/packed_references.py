"""Write small weights packed by the libraries themselves, with what they make of them, for tests to read back.

Needs torch, hqq, torchao and compressed-tensors, which the project does not: run it in an environment of its own,
`python -m tests.bench.models.packed_references tests/quantizer/checkpoint/packed/references`. Each folder holds a
checkpoint's config.json and one file of tensors, of which `expected.NAME` is the weight NAME as the library unpacks it,
in float32.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

ROWS, COLUMNS = 8, 64


def write(folder: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> None:
    """Write one checkpoint."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"quantization_config": config}))
    plain = {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}
    save_file(plain, folder / "model.safetensors", metadata={"format": "pt", **metadata})


def hqq(folder: Path) -> None:
    """Every number of bits and both axes."""
    from hqq.core.quantize import BaseQuantizeConfig, HQQLinear

    tensors: dict[str, torch.Tensor] = {}
    for n_bits in (8, 4, 3, 2, 1):
        for axis, group_size in ((0, 32), (1, 32), (1, None)):
            settings = BaseQuantizeConfig(nbits=n_bits, group_size=group_size, axis=axis)
            linear = torch.nn.Linear(COLUMNS, ROWS, bias=False)
            packed = HQQLinear(linear, settings, compute_dtype=torch.float32, device="cpu", initialize=True)
            name = f"bits{n_bits}_axis{axis}_{group_size}"
            tensors |= {f"{name}.{key}": value for key, value in packed.state_dict().items() if value is not None}
            tensors[f"expected.{name}.weight"] = packed.dequantize()
    write(folder, {"quant_method": "hqq", "quant_config": {}, "skip_modules": []}, tensors, {})


def torchao(folder: Path) -> None:
    """The classes that are made without a GPU."""
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
    from torchao.quantization import (
        Float8WeightOnlyConfig,
        Int8DynamicActivationInt8WeightConfig,
        Int8WeightOnlyConfig,
        IntxWeightOnlyConfig,
        quantize_,
    )
    from torchao.quantization.granularity import PerGroup, PerTensor

    kinds = {
        "int8": Int8WeightOnlyConfig(),
        "int8_groups": Int8WeightOnlyConfig(granularity=PerGroup(32)),
        "int8_dynamic": Int8DynamicActivationInt8WeightConfig(),
        "float8": Float8WeightOnlyConfig(),
        "float8_tensor": Float8WeightOnlyConfig(granularity=PerTensor()),
        "intx": IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32)),
    }
    weights, expected = {}, {}
    for name, config in kinds.items():
        module = torch.nn.Linear(COLUMNS, ROWS, bias=False)
        quantize_(module, config)
        weights[f"{name}.weight"] = module.weight.data
        expected[f"expected.{name}.weight"] = module.weight.data.dequantize().float()
    tensors, metadata = flatten_tensor_state_dict(weights)
    write(folder, {"quant_method": "torchao", "quant_type": {}}, tensors | expected, metadata)


def compressed_tensors(folder: Path) -> None:
    """Several formats in one checkpoint, as mixed precision has them."""
    from compressed_tensors.compressors.base import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    kinds: dict[str, tuple[str, dict[str, Any]]] = {
        "int4": ("pack-quantized", {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}),
        "int3_zeros": (
            "pack-quantized",
            {"num_bits": 3, "type": "int", "strategy": "group", "group_size": 32, "symmetric": False},
        ),
        "int8": ("int-quantized", {"num_bits": 8, "type": "int", "strategy": "channel"}),
        "float8": ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "tensor"}),
        "mxfp8": (
            "mxfp8-quantized",
            {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32, "scale_dtype": torch.uint8},
        ),
        "mxfp4": (
            "mxfp4-pack-quantized",
            {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "scale_dtype": torch.uint8},
        ),
    }
    tensors: dict[str, torch.Tensor] = {}
    groups: dict[str, Any] = {}
    for name, (form, settings) in kinds.items():
        scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**settings))
        compressor = BaseCompressor.get_value_from_registry(form)
        weight = torch.randn(ROWS, COLUMNS) / 8
        counts = {"tensor": (1,), "channel": (ROWS, 1), "group": (ROWS, COLUMNS // 32)}[settings["strategy"]]
        powers = "scale_dtype" in settings
        scale = 2.0 ** torch.randint(-6, -3, counts) if powers else torch.rand(counts) / 64 + 0.02
        state = {"weight": weight, "weight_scale": scale.float()}
        if settings.get("symmetric") is False:
            half = 1 << (settings["num_bits"] - 1)
            state["weight_zero_point"] = torch.randint(-half, half, counts, dtype=torch.int8)
        stored = compressor.compress(state, scheme)
        tensors |= {f"{name}.{key}": value for key, value in stored.items()}
        tensors[f"expected.{name}.weight"] = compressor.decompress(stored, scheme)["weight"].float()
        described = {key: value for key, value in settings.items() if key != "scale_dtype"}
        groups[f"group_{len(groups)}"] = {"targets": ["Linear"], "format": form, "weights": described}
    config = {"quant_method": "compressed-tensors", "format": "mixed-precision", "config_groups": groups}
    write(folder, config, tensors, {})


if __name__ == "__main__":
    torch.manual_seed(0)
    for writer in (compressed_tensors, hqq, torchao):
        writer(Path(sys.argv[1]) / writer.__name__)
