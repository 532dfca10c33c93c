"""vLLM's command line for a model that outgrows one machine, with sizes from the footprint. Pure.

Owns the sizes and the command. Independent of its speed.

Source: "Parallelism and Scaling" and "GGUF" of vLLM's documentation (docs.vllm.ai): tensors are split among the GPUs of
a machine, a number that divides the attention heads, and layers among machines; nine tenths of a GPU's memory are used.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from offload.devices.machine import DeviceKind, Machine
from offload.footprint.model import ModelProfile, PlannedModel
from offload.format import format_memory
from quantizer.gguf.hyperparameters import hyperparameter, layer_values

_UTILIZATION = 0.9
_WORKING_BYTES = 2 << 30  # of activations and recorded graphs on each GPU
_USUAL_GPU_BYTES, _USUAL_N_GPUS = 80 << 30, 8  # of a typical server, for machines without a GPU
_BYTES_PER_WEIGHT = 2  # of a checkpoint as it is published
_REPO_FIELDS = ("general.source.repo_url", "general.repo_url")
_REPO = re.compile(r"https://huggingface\.co/([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)/?")


@dataclass(frozen=True, slots=True)
class Cluster:
    """So many machines with so many GPUs of so many bytes each; `is_like_this` where those are this machine's."""

    n_machines: int
    n_gpus: int
    gpu_bytes: int
    is_like_this: bool

    def __str__(self) -> str:
        cards = f"{self.n_gpus} GPU{'s' if self.n_gpus > 1 else ''} of {format_memory(self.gpu_bytes)}"
        if self.n_machines == 1:
            return f"a machine with {cards}"
        return f"{self.n_machines} machines {'like this' if self.is_like_this else 'each'} with {cards}"


def cluster_for(model: PlannedModel, profile: ModelProfile, machine: Machine) -> Cluster | None:
    """Return the fewest machines whose GPUs hold `model` with the context of `profile`; None where one GPU does."""
    weight_bytes = _BYTES_PER_WEIGHT * model.n_parameters if checkpoint_of(model) else model.n_bytes
    n_bytes = weight_bytes + profile.cache_bytes
    found = _like(machine, model, n_bytes) or _usual(model, n_bytes)
    is_possible = found.n_machines <= hyperparameter(model.header, "block_count")
    return found if is_possible and found.n_machines * found.n_gpus > 1 else None


def vllm_command(model: PlannedModel, cluster: Cluster, n_ctx: int) -> str:
    """Return the command for the first machine of `cluster`; the others have joined its Ray cluster before."""
    command = ["vllm", "serve", checkpoint_of(model) or str(model.header.path)]
    command += ["--tensor-parallel-size", str(cluster.n_gpus), "--pipeline-parallel-size", str(cluster.n_machines)]
    command += ["--max-model-len", str(n_ctx)]
    if cluster.n_machines > 1:
        command += ["--distributed-executor-backend", "ray"]
    return shlex.join(command)


def checkpoint_of(model: PlannedModel) -> str:
    """Return the repository that the file names as its source, or "": vLLM runs checkpoints better than GGUFs."""
    found = (_REPO.fullmatch(model.header.text(name)) for name in _REPO_FIELDS)
    return next((match[1] for match in found if match), "")


def _like(machine: Machine, model: PlannedModel, n_bytes: int) -> Cluster | None:
    """Return machines that have as many GPUs as this one, all as large as its smallest."""
    sizes = [gpu.total_bytes for gpu in machine.gpus if gpu.kind is DeviceKind.GPU and _usable(gpu.total_bytes) > 0]
    if not sizes:
        return None
    n_gpus = _most_sharing(model, len(sizes))
    return Cluster(-(-n_bytes // (n_gpus * _usable(min(sizes)))), n_gpus, min(sizes), is_like_this=True)


def _usual(model: PlannedModel, n_bytes: int) -> Cluster:
    n_needed = -(-n_bytes // _usable(_USUAL_GPU_BYTES))
    n_gpus = 1
    while n_gpus < min(n_needed, _USUAL_N_GPUS) and _most_sharing(model, 2 * n_gpus) == 2 * n_gpus:
        n_gpus *= 2
    return Cluster(-(-n_needed // n_gpus), n_gpus, _USUAL_GPU_BYTES, is_like_this=False)


def _most_sharing(model: PlannedModel, n_gpus: int) -> int:
    """Return how many of `n_gpus` can share a layer: a power of two that divides its heads."""
    n_heads = layer_values(model.header, "attention.head_count", 1)[0]
    n_most = 1
    while 2 * n_most <= n_gpus and n_heads % (2 * n_most) == 0:
        n_most *= 2
    return n_most


def _usable(gpu_bytes: int) -> int:
    return int(_UTILIZATION * gpu_bytes) - _WORKING_BYTES
