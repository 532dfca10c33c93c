"""A placement that the user chose: layers per GPU. Pure.

Owns its order and its speed. Whether it fits is not checked: the user may look at one that does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from offload.devices.machine import Machine
from offload.footprint.profile import ModelProfile
from offload.placement.allocation import allocate, decode_work
from offload.placement.search import Placement
from offload.speed.cost_model import Rates, decode_s
from quantizer.errors import UsageError

__all__ = ["place_manually"]


def place_manually(profile: ModelProfile, machine: Machine, rates: Rates, gpu_layers: Mapping[str, int]) -> Placement:
    """Return the placement with `gpu_layers` by GPU name, the output counted as one and the fastest GPU last.

    Raises UsageError where the machine has no such GPU, or the model not so many layers.
    """
    _check_gpu_layers(gpu_layers, machine, len(profile.layers))
    wanted = [gpu for gpu in machine.gpus if gpu_layers.get(gpu.name)]
    used = sorted(wanted, key=lambda gpu: (rates.seconds_per_byte[gpu.name], -gpu.free_bytes))
    counts = tuple(gpu_layers[gpu.name] for gpu in used)
    n_devices = len(used) + (sum(counts) < len(profile.layers))
    placement = Placement(
        gpus=tuple(gpu.name for gpu in used),
        gpu_layers=counts,
        n_split=0,
        n_crossings=n_devices - 1,
        token_s=0.0,
    )
    return replace(placement, token_s=decode_s(decode_work(allocate(profile, machine, placement), placement), rates))


def _check_gpu_layers(gpu_layers: Mapping[str, int], machine: Machine, n_layers: int) -> None:
    """Raise UsageError where `machine` has no such GPU, or a model of `n_layers`, with the output, not so many
    layers."""
    names = [gpu.name for gpu in machine.gpus]
    for name, count in gpu_layers.items():
        if name not in names:
            remedy = f"Its GPUs are {', '.join(names)}." if names else "It has no GPU that can be used."
            raise UsageError(f"This machine has no GPU called {name}.", remedy)
        if count < 0:
            raise UsageError(f"{count} layers on {name} make no sense.", "Give 0 or more.")
    if sum(gpu_layers.values()) > n_layers:
        raise UsageError(f"{sum(gpu_layers.values())} layers are to go to GPUs.", f"This model has {n_layers}.")
