"""A placement in the terms that llama.cpp loads by: layers on GPUs, their proportions, and what stays behind. Pure.

Owns the translation. Knows nothing of ctypes.
Source: `load_tensors` in src/llama-model.cpp as vendored in llama-cpp-python 0.3.36.
"""

from __future__ import annotations

from dataclasses import dataclass

from offload.placement import Placement
from offload.profile import ModelProfile

__all__ = ["LoadParameters", "load_parameters"]

_EXPERTS, _FEED_FORWARD = r"ffn_\w+_exps\.", r"ffn_(gate|up|down|gate_up)\.weight"


@dataclass(frozen=True, slots=True)
class LoadParameters:
    """`devices` are names in llama.cpp's order, the first has the earliest layers; `tensor_split` is layers for each.

    Tensors whose names match `host_pattern` stay with the processor; it is empty where none do.
    """

    n_gpu_layers: int
    devices: tuple[str, ...]
    tensor_split: tuple[int, ...]
    host_pattern: str


def load_parameters(profile: ModelProfile, placement: Placement) -> LoadParameters:
    """Return what makes llama.cpp place the layers of `profile` so."""
    used = [(name, count) for name, count in zip(placement.gpus, placement.gpu_layers, strict=True) if count]
    used.reverse()  # a placement begins with the last layers
    return LoadParameters(
        n_gpu_layers=placement.n_on_gpus,
        devices=tuple(name for name, _ in used),
        tensor_split=tuple(count for _, count in used),
        host_pattern=_host_pattern(profile, placement),
    )


def _host_pattern(profile: ModelProfile, placement: Placement) -> str:
    first = len(profile.layers) - placement.n_on_gpus
    split = [str(index) for index in range(first, placement.n_split)]
    if not split:
        return ""
    return rf"^blk\.({'|'.join(split)})\.{_EXPERTS if profile.has_experts else _FEED_FORWARD}"
