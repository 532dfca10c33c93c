"""GPT-OSS as it is published: experts in MXFP4, interleaved; and the same weights stored as plain numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from quantizer.architectures import find_architecture
from quantizer.gguf.header import Header
from quantizer.gguf.tensor_types import TENSOR_TYPES, file_type_named
from quantizer.gguf.validation import validate_gguf
from quantizer.write.plan_options import PlanOptions
from quantizer.write.quantize import execute
from quantizer.write.quantize_plan import plan
from tests.quantizer.checkpoints import write_checkpoint
from tests.quantizer.packers import mxfp4

OUTLINE: dict[str, Any] = json.loads((Path(__file__).parents[2] / "outlines.json").read_text())["gpt-oss"]
EXPERTS = "model.layers.0.mlp.experts"
N_EXPERTS, N_FF, N_EMBD = 4, 96, 96


def plain(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Every tensor but the matrices of the experts."""
    return {
        name: rng.standard_normal(shape, np.float32)
        for name, shape in OUTLINE["tensors"].items()
        if not name.endswith("_proj")
    }


def stored(packed: bool) -> tuple[dict[str, Any], dict[str, tuple[str, np.ndarray]], dict[str, np.ndarray]]:
    """A config, stored tensors, and the experts' matrices that they stand for, outputs as rows."""
    rng = np.random.default_rng(4)
    parts = {
        "gate_up_proj": mxfp4(rng, f"{EXPERTS}.gate_up_proj", (N_EXPERTS, 2 * N_FF, N_EMBD)),
        "down_proj": mxfp4(rng, f"{EXPERTS}.down_proj", (N_EXPERTS, N_EMBD, N_FF)),
    }
    tensors = {name: ("F32", array) for name, array in plain(rng).items()}
    config = dict(OUTLINE["config"])
    for name, part in parts.items():
        turned = np.ascontiguousarray(part.weight.transpose(0, 2, 1))
        tensors |= part.tensors if packed else {f"{EXPERTS}.{name}": ("F32", turned)}
    if packed:
        config["quantization_config"] = {"quant_method": "mxfp4"}
    return config, tensors, {name: part.weight for name, part in parts.items()}


def convert(folder: Path, file_type: str, *overrides: str) -> Header:
    output = folder.with_name(f"{folder.name}-{file_type}.gguf")
    options = PlanOptions(tensor_types=tuple(overrides))
    execute(plan(folder, file_type_named(file_type), output, options), 2, True, lambda _done: None)
    return validate_gguf(output)


def types(header: Header) -> dict[str, str]:
    return {tensor.name: TENSOR_TYPES[tensor.type_id].name for tensor in header.tensors}


def values(header: Header) -> dict[str, np.ndarray]:
    return {
        tensor.name: gguf.dequantize(tensor.data, tensor.tensor_type) for tensor in gguf.GGUFReader(header.path).tensors
    }


@pytest.mark.parametrize(("packed", "overrides"), [(True, []), (True, ["_exps=F32"]), (False, [])])
def test_gates_and_ups_are_the_even_and_odd_rows_however_they_are_stored(
    tmp_path: Path, packed: bool, overrides: list[str]
) -> None:
    config, tensors, weights = stored(packed)
    header = convert(write_checkpoint(tmp_path / "model", config, tensors), "F32", *overrides)
    ours = values(header)
    assert types(header)["blk.0.ffn_up_exps.weight"] == ("MXFP4" if packed and not overrides else "F32")
    assert np.array_equal(ours["blk.0.ffn_gate_exps.weight"], weights["gate_up_proj"][:, ::2])
    assert np.array_equal(ours["blk.0.ffn_up_exps.weight"], weights["gate_up_proj"][:, 1::2])
    assert np.array_equal(ours["blk.0.ffn_down_exps.weight"], weights["down_proj"])
    bias = tensors[f"{EXPERTS}.gate_up_proj_bias"][1]
    assert np.array_equal(ours["blk.0.ffn_gate_exps.bias"], bias[:, ::2])
    assert np.array_equal(ours["blk.0.ffn_up_exps.bias"], bias[:, 1::2])
    assert np.array_equal(ours["blk.0.attn_sinks.weight"], tensors["model.layers.0.self_attn.sinks"][1])


@pytest.mark.parametrize(
    ("file_type", "expected"), [("F16", "MXFP4"), ("Q8_0", "MXFP4"), ("Q4_K_M", "MXFP4"), ("MXFP4_MOE", "MXFP4")]
)
def test_experts_in_mxfp4_stay_so_where_more_bits_would_add_nothing(
    tmp_path: Path, file_type: str, expected: str
) -> None:
    config, tensors, _ = stored(packed=True)
    header = convert(write_checkpoint(tmp_path / "model", config, tensors), file_type)
    assert types(header)["blk.0.ffn_down_exps.weight"] == expected
    assert types(header)["blk.0.attn_q.weight"] != "MXFP4"


def test_rounded_rotations_are_warned_of(tmp_path: Path) -> None:
    config, tensors, _ = stored(packed=True)
    config["rope_parameters"] = config["rope_parameters"] | {"truncate": False}
    folder = write_checkpoint(tmp_path / "model", config, tensors)
    planned = plan(folder, file_type_named("F16"), tmp_path / "m.gguf")
    assert any("llama.cpp rounds" in text for text in planned.warnings)
    architecture, settings = find_architecture(OUTLINE["config"])
    assert architecture.approximations(settings) == ()
