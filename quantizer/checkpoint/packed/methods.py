"""The table of packed formats, and the step from a checkpoint's stored tensors to plain weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from quantizer.checkpoint.config import CheckpointError, Config
from quantizer.checkpoint.packed import gptq, scaled, self_described
from quantizer.checkpoint.packed.parts import FLOATS, Parts, malformed, unsupported
from quantizer.checkpoint.safetensors import Checkpoint, read_object
from quantizer.convert.source_model import FileTensor

# the word after auto_round -> GPTQ's format; AWQ has one
_GPTQ = {
    "": "gptq_v2",
    "exllamav2": "gptq_v2",
    "gptqmodel": "gptq_v2",
    "tritonv2": "gptq_v2",
    "auto_gptq": "gptq",
    "gptq": "gptq",
    "tritonv2_zp": "gptq",
}
_AWQ = ("auto_awq", "awq")
_FLOATS = ("fp8", "fp8_static", "llm_compressor")


def _unpack_autoround(config: Config, parts: Parts) -> Iterator[FileTensor]:
    """Yield every weight of AutoRound, which is one way of quantizing, stored in the layouts of others.
    `packing_format` (of the first versions, `backend`) names the layout and perhaps a kernel; its own is GPTQ's with
    zero points as they are. Source: auto-round's inference backends and its exports."""
    layout = config.text("packing_format") or config.text("backend") or "auto_round"
    if config.values.get("rotation_config"):
        raise unsupported("rotation of AutoRound")
    name = layout.removeprefix("auto_round").removeprefix(":").partition(":")[0]
    if name in _GPTQ:
        yield from gptq.unpack_gptq(Config({**config.values, "checkpoint_format": _GPTQ[name]}), parts)
    elif name in _AWQ:
        yield from gptq.unpack_awq(Config({**config.values, "version": "gemm"}), parts)
    elif name in _FLOATS:
        yield from scaled.unpack_small_floats(parts)
    else:
        raise unsupported(f"AutoRound layout {layout[:64]!r}")


Method: TypeAlias = Callable[[Config, Parts], Iterator[FileTensor]]

# quant_method of config.json -> what takes the parts and yields the weights
METHODS: dict[str, Method] = {
    "auto-round": _unpack_autoround,
    "awq": gptq.unpack_awq,
    "bitsandbytes": self_described.unpack_bitsandbytes,
    "compressed-tensors": scaled.unpack_compressed_tensors,
    "fbgemm_fp8": scaled.unpack_fp8,
    "fp8": scaled.unpack_fp8,
    "gptq": gptq.unpack_gptq,
    "hqq": self_described.unpack_hqq,
    "intel/auto-round": _unpack_autoround,
    "modelopt": scaled.unpack_modelopt,
    "modelopt_fp4": scaled.unpack_modelopt,
    "mxfp8": scaled.unpack_fp8,
    "mxfp4": scaled.unpack_mxfp4,
    "torchao": self_described.unpack_torchao,
}
# scales of activations and of the KV cache: they change no weight
_INPUTS = ("activation_scale", ".input_scale", ".input_scale_ub", ".input_global_scale")
_UNUSED = (*_INPUTS, ".output_scale", ".k_scale", ".v_scale")
_WEIGHTS = (*FLOATS, "MXFP4")


def unpack_checkpoint(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint with plain weights in place of packed ones; unchanged when there are none. Raises
    CheckpointError naming a format that is not known, or a part that is missing or wrong."""
    config = Config(checkpoint.config)
    places = (config, config.section("text_config"))
    sections = (place.section("quantization_config", "compression_config") for place in places)
    section = next((section for section in sections if section.values), _own_file(checkpoint.folder))
    if not section.values:
        return checkpoint
    name = section.text("quant_method") or "none"
    if name not in METHODS:
        raise unsupported(f"quantization {name[:64]!r}")
    parts = Parts(checkpoint.tensors, checkpoint.metadata)
    parts.drop(_UNUSED)
    weights: dict[str, FileTensor] = {}
    for weight in METHODS[name](section, parts):
        if weight.name in weights or weight.name in parts.left:
            raise malformed(f"The tensor {weight.name!r} is stored twice")
        weights[weight.name] = weight
    return replace(checkpoint, tensors=parts.left | weights)


def _own_file(folder: Path) -> Config:
    """Return the settings in a file of their own, which does not name the format: AutoGPTQ's first, and ModelOpt's."""
    gptq_values = _optional(folder / "quantize_config.json")
    if "bits" in gptq_values:
        return Config({"quant_method": "gptq", **gptq_values})
    values = Config(_optional(folder / "hf_quant_config.json")).section("quantization").values
    return Config({"quant_method": "modelopt", **values} if "quant_algo" in values else {})


def _optional(path: Path) -> dict[str, Any]:
    return read_object(path) if path.exists() else {}


def check_stored(tensor: FileTensor) -> None:
    """Raise CheckpointError when the tensor is packed, and config.json has no format for it."""
    if tensor.stored.name not in _WEIGHTS:
        cause = f"The tensor {tensor.name!r} is stored as {tensor.stored.name}, but config.json names no format."
        raise CheckpointError(cause, "Get the F32, F16 or BF16 version of this model.")
