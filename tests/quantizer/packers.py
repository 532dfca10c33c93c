"""Packs weights as quantized checkpoints hold them: slow and by the book, sharing nothing with what unpacks them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from quantizer.checkpoint.packed.methods import unpack_checkpoint
from quantizer.checkpoint.safetensors import read_checkpoint
from tests.quantizer.checkpoints import exact, write_tensors

__all__ = [
    "FORMATS",
    "Packed",
    "autoround",
    "awq",
    "compressed",
    "compressed_nvfp4",
    "e4m3",
    "fp8",
    "gptq",
    "hqq",
    "int8_rows",
    "mxfp4",
    "mxfp4_rows",
    "mxfp8",
    "nf4",
    "nvfp4",
    "read",
    "torchao_float8",
    "torchao_int4",
    "torchao_int8",
    "torchao_tiles",
]

NF4 = np.linspace(-1, 1, 16, dtype=np.float32)
FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


@dataclass(frozen=True)
class Packed:
    """The stored tensors of one weight (dtype, array), the float32 weight that they stand for, and metadata."""

    tensors: dict[str, tuple[str, np.ndarray]]
    weight: np.ndarray
    config: dict[str, Any]
    metadata: dict[str, str] = field(default_factory=dict)


def read(
    config: dict[str, Any],
    tensors: dict[str, tuple[str, np.ndarray]],
    n_rows: int = 5,
    metadata: dict[str, str] | None = None,
) -> dict[str, np.ndarray]:
    """What the quantizer makes of stored tensors, read a few rows at a time."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps({"quantization_config": config}))
        write_tensors(folder / "model.safetensors", tensors, metadata)
        weights = unpack_checkpoint(read_checkpoint(folder)).tensors
        return {
            name: np.frombuffer(b"".join(tensor.slabs(n_rows)), {"F32": "<f4"}.get(tensor.stored.name, "u1")).reshape(
                *reversed(tensor.shape[1:]), -1
            )
            for name, tensor in weights.items()
        }


def words(fields: np.ndarray, n_bits: int) -> np.ndarray:
    """Whole numbers as one stream of bits along the last axis, the lowest first, cut into words of 32."""
    bits = (fields[..., None].astype(np.int64) >> np.arange(n_bits)) & 1
    stream = bits.reshape(*fields.shape[:-1], -1).astype(np.uint8)
    padding = [(0, 0)] * (stream.ndim - 1) + [(0, -stream.shape[-1] % 32)]
    return np.packbits(np.pad(stream, padding), axis=-1, bitorder="little").view("<i4")


def scales(rng: np.random.Generator, shape: tuple[int, ...], dtype: str = "F16") -> np.ndarray:
    """Positive numbers that `dtype` holds exactly."""
    return exact(rng.uniform(0.001, 0.02, shape), dtype)


def gptq(
    rng: np.random.Generator,
    base: str,
    shape: tuple[int, int],
    n_bits: int = 4,
    group_size: int = 32,
    version: str = "gptq",
    is_in_order: bool = False,
) -> Packed:
    """qweight, qzeros, scales and g_idx; the first version stores zero points less one."""
    n_rows, n_columns = shape
    groups = np.arange(n_columns) // (group_size if group_size > 0 else n_columns)
    groups = groups if is_in_order else rng.permutation(groups)
    n_groups = int(groups.max()) + 1
    codes, factors = rng.integers(0, 1 << n_bits, shape), scales(rng, (n_groups, n_rows))
    first = 1 if version == "gptq" else 0
    zeros = rng.integers(first, (1 << n_bits) - 1 + first, (n_groups, n_rows))
    tensors = {
        f"{base}.qweight": ("I32", np.ascontiguousarray(words(codes, n_bits).T)),
        f"{base}.qzeros": ("I32", words(zeros - first, n_bits)),
        f"{base}.scales": ("F16", factors),
        f"{base}.g_idx": ("I32", groups.astype("<i4")),
    }
    config = {"quant_method": "gptq", "bits": n_bits, "group_size": group_size, "checkpoint_format": version}
    weight = (codes - zeros[groups].T).astype(np.float32) * factors[groups].T
    return Packed(tensors, weight, config)


def awq(rng: np.random.Generator, base: str, shape: tuple[int, int], group_size: int = 32) -> Packed:
    """qweight, qzeros and scales; output 8k + order[i] lies in field i of word k."""
    n_rows, n_columns = shape
    order = np.array([0, 2, 4, 6, 1, 3, 5, 7])
    groups = np.arange(n_columns) // group_size
    codes, zeros = rng.integers(0, 16, shape), rng.integers(0, 16, (n_columns // group_size, n_rows))
    factors = scales(rng, zeros.shape)
    places = (np.arange(n_rows) // 8 * 8).reshape(-1, 8) + order
    tensors = {
        f"{base}.qweight": ("I32", words(codes.T[:, places.reshape(-1)], 4)),
        f"{base}.qzeros": ("I32", words(zeros[:, places.reshape(-1)], 4)),
        f"{base}.scales": ("F16", factors),
    }
    weight = (codes - zeros[groups].T).astype(np.float32) * factors[groups].T
    return Packed(tensors, weight, {"quant_method": "awq", "bits": 4, "group_size": group_size, "version": "gemm"})


def compressed(
    rng: np.random.Generator,
    base: str,
    shape: tuple[int, int],
    n_bits: int = 4,
    group_size: int | None = 32,
    is_symmetric: bool = True,
    is_reordered: bool = False,
) -> Packed:
    """pack-quantized: signed values, one scale for each group of columns or (no group size) for each row."""
    n_rows, n_columns = shape
    half = 1 << (n_bits - 1)
    groups = np.arange(n_columns) // (group_size or n_columns)
    groups = rng.permutation(groups) if is_reordered else groups
    values = rng.integers(-half, half, shape)
    factors = scales(rng, (n_rows, int(groups.max()) + 1), "BF16")
    points = np.zeros(factors.shape, np.int64) if is_symmetric else rng.integers(-half, half, factors.shape)
    tensors = {
        f"{base}.weight_packed": ("I32", words(values + half, n_bits)),
        f"{base}.weight_scale": ("BF16", factors),
        f"{base}.weight_shape": ("I64", np.array(shape)),
    }
    if not is_symmetric:
        packed_points = np.ascontiguousarray(words((points + half).T, n_bits).T)
        tensors[f"{base}.weight_zero_point"] = ("I32", packed_points)
    if is_reordered:
        tensors[f"{base}.weight_g_idx"] = ("I32", groups.astype("<i4"))
    settings = {
        "num_bits": n_bits,
        "type": "int",
        "strategy": "group" if group_size else "channel",
        "group_size": group_size,
        "symmetric": is_symmetric,
    }
    weight = (values - points[:, groups]).astype(np.float32) * factors[:, groups]
    return Packed(tensors, weight, compressed_config("pack-quantized", settings))


def int8_rows(rng: np.random.Generator, base: str, shape: tuple[int, int], is_symmetric: bool = True) -> Packed:
    """int-quantized: a byte for each value and a scale for each row."""
    values, factors = rng.integers(-128, 128, shape), scales(rng, (shape[0], 1), "BF16")
    points = np.zeros(factors.shape, np.int64) if is_symmetric else rng.integers(-128, 128, factors.shape)
    tensors = {f"{base}.weight": ("I8", values.astype(np.int8)), f"{base}.weight_scale": ("BF16", factors)}
    if not is_symmetric:
        tensors[f"{base}.weight_zero_point"] = ("I8", points.astype(np.int8))
    settings = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": is_symmetric}
    weight = (values - points).astype(np.float32) * factors
    return Packed(tensors, weight, compressed_config("int-quantized", settings))


def compressed_config(form: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The quantization_config of compressed-tensors."""
    groups = {"group_0": {"targets": ["Linear"], "weights": settings}}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": groups, "ignore": ["lm_head"]}


def e4m3(code: int) -> float:
    """The value of one byte, by the definition."""
    sign, exponent, mantissa = -1 if code & 128 else 1, code >> 3 & 15, code & 7
    if code & 127 == 127:
        return float("nan")
    return sign * (2.0 ** (exponent - 7) * (1 + mantissa / 8) if exponent else 2.0**-6 * mantissa / 8)


def fp8(
    rng: np.random.Generator, base: str, shape: tuple[int, int], block: tuple[int, int] | None = (128, 128)
) -> Packed:
    """Bytes and a scale for each block, or for the whole weight."""
    codes = rng.integers(0, 256, shape).astype(np.uint8)
    codes[codes & 127 == 127] = 0
    counts = tuple(-(-n // length) for n, length in zip(shape, block, strict=True)) if block else ()
    factors = scales(rng, counts, "F32")
    tensors = {f"{base}.weight": ("F8_E4M3", codes), f"{base}.weight_scale_inv": ("F32", factors)}
    values = np.array([e4m3(code) for code in range(256)], np.float32)[codes]
    lengths = block or shape
    spread = np.repeat(np.repeat(factors.reshape(counts or (1, 1)), lengths[0], 0), lengths[1], 1)
    weight = values * spread[: shape[0], : shape[1]]
    return Packed(tensors, weight, {"quant_method": "fp8", "weight_block_size": list(block) if block else None})


def nf4(rng: np.random.Generator, base: str, shape: tuple[int, int], block: int = 64, is_nested: bool = True) -> Packed:
    """Codes in blocks that run on over the rows, with magnitudes that are codes themselves when nested."""
    n = shape[0] * shape[1]
    codes, n_blocks, name = rng.integers(0, 16, n), -(-n // block), f"{base}.weight"
    padded = np.pad(codes, (0, n % 2))
    state = {"quant_type": "nf4", "blocksize": block, "dtype": "bfloat16", "shape": list(shape)}
    tensors: dict[str, tuple[str, np.ndarray]] = {
        name: ("U8", (padded[::2] * 16 + padded[1::2]).astype(np.uint8)[:, None]),
        f"{name}.quant_map": ("F32", NF4),
    }
    if is_nested:
        levels, table = rng.integers(0, 256, n_blocks), rng.standard_normal(256).astype(np.float32)
        nested = scales(rng, (-(-n_blocks // 256),), "F32")
        magnitudes = table[levels] * nested[np.arange(n_blocks) // 256] + np.float32(0.125)
        tensors[f"{name}.absmax"] = ("U8", levels.astype(np.uint8))
        tensors[f"{name}.nested_absmax"] = ("F32", nested)
        tensors[f"{name}.nested_quant_map"] = ("F32", table)
        state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.125}
    else:
        magnitudes = scales(rng, (n_blocks,), "F32")
        tensors[f"{name}.absmax"] = ("F32", magnitudes)
    described = np.frombuffer(json.dumps(state).encode(), np.uint8)
    tensors[f"{name}.quant_state.bitsandbytes__nf4"] = ("U8", described)
    weight = (NF4[codes] * magnitudes[np.arange(n) // block]).reshape(shape)
    return Packed(tensors, weight, {"quant_method": "bitsandbytes", "load_in_4bit": True})


def int8_magnitudes(rng: np.random.Generator, base: str, shape: tuple[int, int]) -> Packed:
    """bitsandbytes' eight bits: 127 stands for a row's largest magnitude."""
    values, magnitudes = rng.integers(-127, 128, shape).astype(np.int8), scales(rng, (shape[0],), "F32")
    tensors = {
        f"{base}.weight": ("I8", values),
        f"{base}.SCB": ("F32", magnitudes),
        f"{base}.weight_format": ("U8", np.zeros((), np.uint8)),
    }
    weight = values.astype(np.float32) * magnitudes[:, None] * np.float32(1 / 127)
    return Packed(tensors, weight, {"quant_method": "bitsandbytes", "load_in_8bit": True})


def mxfp4(rng: np.random.Generator, base: str, shape: tuple[int, int, int]) -> Packed:
    """Two four-bit floats to a byte, neighbours, the first in the lower half; an exponent for each 32."""
    codes = rng.integers(0, 16, shape)
    exponents = rng.integers(110, 130, (*shape[:-1], shape[-1] // 32)).astype(np.uint8)
    tensors = {
        f"{base}_blocks": (
            "U8",
            (codes[..., ::2] + codes[..., 1::2] * 16).astype(np.uint8).reshape(*exponents.shape, 16),
        ),
        f"{base}_scales": ("U8", exponents),
    }
    values = np.where(codes < 8, 1, -1) * FP4[codes % 8]
    weight = values * np.repeat(2.0 ** (exponents.astype(np.float64) - 127), 32, axis=-1)
    return Packed(tensors, weight.astype(np.float32), {"quant_method": "mxfp4"})


def nvfp4(rng: np.random.Generator, base: str, shape: tuple[int, ...]) -> Packed:
    """ModelOpt's: two four-bit floats to a byte, the first in the lower half; FP8 for each 16, a float32 for all."""
    codes = rng.integers(0, 16, shape)
    levels = rng.integers(1, 127, (*shape[:-1], shape[-1] // 16)).astype(np.uint8)
    factor = exact(rng.uniform(0.0001, 0.002, ()), "F32")
    tensors = {
        f"{base}.weight": ("U8", (codes[..., ::2] + codes[..., 1::2] * 16).astype(np.uint8)),
        f"{base}.weight_scale": ("F8_E4M3", levels),
        f"{base}.weight_scale_2": ("F32", factor),
        f"{base}.input_scale": ("F32", factor),
    }
    weight = nvfp4_values(codes, levels, lambda scale: scale * np.float32(factor))
    return Packed(tensors, weight, {"quant_method": "modelopt", "quant_algo": "NVFP4"})


def compressed_nvfp4(rng: np.random.Generator, base: str, shape: tuple[int, int]) -> Packed:
    """compressed-tensors' of the same: other names, and the scale of all is divided by."""
    codes = rng.integers(0, 16, shape)
    levels = rng.integers(1, 127, (shape[0], shape[1] // 16)).astype(np.uint8)
    divisor = exact(rng.uniform(500, 10_000, (1,)), "F32")
    tensors = {
        f"{base}.weight_packed": ("U8", (codes[:, ::2] + codes[:, 1::2] * 16).astype(np.uint8)),
        f"{base}.weight_scale": ("F8_E4M3", levels),
        f"{base}.weight_global_scale": ("F32", divisor),
        f"{base}.input_global_scale": ("F32", divisor),
    }
    settings = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": True}
    weight = nvfp4_values(codes, levels, lambda scale: scale / np.float32(divisor[0]))
    return Packed(tensors, weight, compressed_config("nvfp4-pack-quantized", settings))


def nvfp4_values(codes: np.ndarray, levels: np.ndarray, scaled: Callable[[np.float32], np.float32]) -> np.ndarray:
    """Each number by the definition, one by one."""
    weight = np.empty(codes.shape, np.float32)
    for place, code in np.ndenumerate(codes):
        sign = np.float32(-1 if code >= 8 else 1)
        scale = np.float32(e4m3(int(levels[(*place[:-1], place[-1] // 16)])))
        weight[place] = sign * FP4[code % 8] * scaled(scale)
    return weight


def mxfp4_rows(rng: np.random.Generator, base: str, shape: tuple[int, ...]) -> Packed:
    """compressed-tensors' MXFP4: rows of bytes, and an exponent for each 32 columns."""
    blocks = mxfp4(rng, base, shape)
    codes, exponents = blocks.tensors[f"{base}_blocks"][1], blocks.tensors[f"{base}_scales"][1]
    tensors = {
        f"{base}.weight_packed": ("U8", codes.reshape(*shape[:-1], -1)),
        f"{base}.weight_scale": ("U8", exponents),
    }
    settings = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "symmetric": True}
    return Packed(tensors, blocks.weight, compressed_config("mxfp4-pack-quantized", settings))


def mxfp8(rng: np.random.Generator, base: str, shape: tuple[int, int]) -> Packed:
    """FP8 with a power of two for each 32 columns, stored as a byte."""
    packed = fp8(rng, base, shape, (1, 32))
    codes = packed.tensors[f"{base}.weight"][1]
    exponents = rng.integers(110, 130, (shape[0], shape[1] // 32)).astype(np.uint8)
    tensors = {f"{base}.weight": ("F8_E4M3", codes), f"{base}.weight_scale": ("U8", exponents)}
    values = np.array([e4m3(code) for code in range(256)], np.float32)[codes]
    weight = values * np.repeat(2.0 ** (exponents.astype(np.float64) - 127), 32, axis=-1)
    settings = {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32, "symmetric": True}
    return Packed(tensors, weight.astype(np.float32), compressed_config("mxfp8-quantized", settings))


def hqq(
    rng: np.random.Generator,
    base: str,
    shape: tuple[int, int],
    n_bits: int = 4,
    group_size: int | None = 32,
    axis: int = 1,
    dtype: str = "F16",
) -> Packed:
    """W_q with its neighbours a part of the layout away, and a zero point that is no whole number."""
    n, codes = shape[0] * shape[1], rng.integers(0, 1 << n_bits, shape)
    size = group_size or shape[1]
    rows = shape if group_size is None else ((n // size, size) if axis else (size, n // size))
    laid = codes.reshape(rows)
    grid = (rows[0], 1) if axis else (1, rows[1])
    factors, zeros = scales(rng, grid, dtype), exact(rng.uniform(0, 1 << n_bits, grid), dtype)
    per_word = {8: 1, 4: 2, 3: 10, 2: 4, 1: 8}[n_bits]
    padded = np.pad(laid, ((0, -rows[0] % per_word), (0, 0))).reshape(per_word, -1, rows[1])
    packed = np.zeros(padded.shape[1:], np.int64)
    for part in padded:
        packed = packed * 2**n_bits + part
    name = "3bit_32" if n_bits == 3 else f"{n_bits}bit_u8"
    tensors = {
        f"{base}.W_q": ("I32", packed.astype("<i4")) if n_bits == 3 else ("U8", packed.astype(np.uint8)),
        f"{base}.scale": (dtype, factors),
        f"{base}.zero": (dtype, zeros),
        f"{base}.shape": ("I64", np.array(shape)),
        f"{base}.packing": ("U8", np.frombuffer(name.encode(), np.uint8)),
        f"{base}.axis": ("I32", np.array(axis, "<i4")),
        f"{base}.nbits": ("I32", np.array(n_bits, "<i4")),
        f"{base}.view_as_float": ("U8", np.zeros((), np.uint8)),
    }
    if group_size is not None:
        tensors[f"{base}.group_size"] = ("I32", np.array(group_size, "<i4"))
    weight = ((laid.astype(np.float32) - zeros) * factors).reshape(shape)
    return Packed(tensors, weight, {"quant_method": "hqq", "quant_config": {}, "skip_modules": ["lm_head"]})


def autoround(rng: np.random.Generator, base: str, shape: tuple[int, int]) -> Packed:
    """AutoRound's own layout: GPTQ's with zero points as they are."""
    packed = gptq(rng, base, shape, version="gptq_v2", is_in_order=True)
    tensors = {name: tensor for name, tensor in packed.tensors.items() if not name.endswith(".g_idx")}
    config = {"quant_method": "auto-round", "packing_format": "auto_round", "bits": 4, "group_size": 32, "sym": False}
    return Packed(tensors, packed.weight, config)


def torchao_int8(
    rng: np.random.Generator, base: str, shape: tuple[int, int], block: tuple[int, int] | None = None
) -> Packed:
    """Int8Tensor: a byte for each value, a scale and a zero point for each block."""
    block = block or (1, shape[1])
    counts = (shape[0] // block[0], shape[1] // block[1])
    values, points = rng.integers(-128, 128, shape), rng.integers(-128, 128, counts)
    factors = scales(rng, counts, "F32")
    parts = {
        "qdata": ("I8", values.astype(np.int8)),
        "scale": ("F32", factors),
        "zero_point": ("I8", points.astype(np.int8)),
    }
    weight = (values - np.kron(points, np.ones(block, np.int64))).astype(np.float32) * over(factors, block)
    return torchao_packed(base, "Int8Tensor", parts, weight, {"block_size": list(block), "act_quant_kwargs": None})


def torchao_float8(rng: np.random.Generator, base: str, shape: tuple[int, int]) -> Packed:
    """Float8Tensor with a scale for each row."""
    packed = fp8(rng, base, shape, (1, shape[1]))
    values, factors = (packed.tensors[f"{base}.{part}"] for part in ("weight", "weight_scale_inv"))
    parts = {"qdata": values, "scale": factors}
    return torchao_packed(base, "Float8Tensor", parts, packed.weight, {"block_size": [1, shape[1]]})


def torchao_int4(rng: np.random.Generator, base: str, shape: tuple[int, ...], group_size: int = 32) -> Packed:
    """Int4Tensor: signed pairs, the first in the lower half; scales and zero points with rows last."""
    values = rng.integers(-8, 8, shape)
    grid = (*shape[:-1], shape[-1] // group_size)
    factors, points = scales(rng, grid, "BF16"), exact(rng.uniform(-1, 1, grid), "BF16")
    pairs = (values[..., ::2] % 16 + values[..., 1::2] % 16 * 16).astype(np.uint8).view(np.int8)
    parts = {
        "qdata": ("I8", pairs),
        "scale": ("BF16", np.swapaxes(factors, -1, -2).copy()),
        "zero_point": ("BF16", np.swapaxes(points, -1, -2).copy()),
    }
    spread, shifts = (np.repeat(numbers, group_size, -1) for numbers in (factors, points))
    weight = values.astype(np.float32) * spread + shifts
    block = [*[1] * (len(shape) - 1), group_size]
    return torchao_packed(base, "Int4Tensor", parts, weight, {"block_size": block, "shape": list(shape)})


def torchao_tiles(rng: np.random.Generator, base: str, shape: tuple[int, ...], group_size: int = 32) -> Packed:
    """Int4TilePackedTo4dTensor: what each thread of a warp reads, lane by lane and word by word; padded to 8 x 1024."""
    *leading, n_rows, n_columns = shape
    padded = (*leading, -(-n_rows // 8) * 8, -(-n_columns // 1024) * 1024)
    codes = rng.integers(0, 16, padded)
    grid = (*padded[:-1], padded[-1] // group_size)
    factors, points = scales(rng, grid, "BF16"), exact(rng.uniform(-1, 1, grid), "BF16")
    words = np.zeros((*leading, padded[-2] // 8, padded[-1] // 128, 32, 4), np.uint32)
    for place in np.ndindex(words.shape):
        *outer, row_tile, column_tile, lane, word = place
        row, first = 8 * row_tile + lane // 4, 128 * column_tile + 32 * word + lane % 4 * 2
        for place_in_word, step in enumerate((0, 8, 16, 24, 1, 9, 17, 25)):
            words[place] |= np.uint32(codes[(*outer, row, first + step)] << 4 * place_in_word)
    parts = {
        "qdata": ("I32", words.view("<i4")),
        "scale_and_zero": ("BF16", np.swapaxes(np.stack([factors, points], -1), -2, -3).copy()),
    }
    spread, shifts = (np.repeat(numbers, group_size, -1) for numbers in (factors, points))
    weight = ((codes - 8).astype(np.float32) * spread + shifts)[..., :n_rows, :n_columns]
    block = [*[1] * (len(shape) - 1), group_size]
    described = {"block_size": block, "shape": list(shape)}
    return torchao_packed(base, "Int4TilePackedTo4dTensor", parts, np.ascontiguousarray(weight), described)


def over(numbers: np.ndarray, block: tuple[int, int]) -> np.ndarray:
    """One number for each block, over all its elements."""
    return np.repeat(np.repeat(numbers, block[0], 0), block[1], 1)


def torchao_packed(
    base: str, kind: str, parts: dict[str, tuple[str, np.ndarray]], weight: np.ndarray, attributes: dict[str, Any]
) -> Packed:
    """The parts under torchao's names, and their description in the metadata."""
    name = f"{base}.weight"
    described = {"_type": kind, "_data": attributes, "_tensor_data_names": list(parts)}
    metadata = {name: json.dumps(described), "tensor_names": json.dumps([name])}
    tensors = {f"{base}._weight_{part}": tensor for part, tensor in parts.items()}
    return Packed(tensors, weight, {"quant_method": "torchao", "quant_type": {"default": {}}}, metadata)


# every format that packs a matrix, with its usual settings
FORMATS: dict[str, Callable[[np.random.Generator, str, tuple[int, int]], Packed]] = {
    "auto-round": autoround,
    "awq": awq,
    "compressed-tensors int4": compressed,
    "compressed-tensors int8": int8_rows,
    "compressed-tensors mxfp4": mxfp4_rows,
    "compressed-tensors mxfp8": mxfp8,
    "compressed-tensors nvfp4": compressed_nvfp4,
    "fp8": fp8,
    "gptq": gptq,
    "hqq": hqq,
    "int8": int8_magnitudes,
    "nf4": nf4,
    "nvfp4": nvfp4,
    "torchao float8": torchao_float8,
    "torchao int4": torchao_int4,
    "torchao int8": torchao_int8,
    "torchao tiles": torchao_tiles,
}
