"""How many bytes of weights one token makes the processor read. Pure.

Owns which tensors a token touches. Knows nothing of caches or of speed.
"""

from __future__ import annotations

from collections.abc import Sequence

from quantizer.header import Header, TensorInfo

__all__ = ["EMBEDDING", "OUTPUT", "bytes_read", "is_of_experts", "weight_bytes_per_token"]

EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"
_EXPERTS = "_exps."  # tensors that hold all experts of a layer, one behind the other


def weight_bytes_per_token(header: Header, tensors: Sequence[TensorInfo]) -> int:
    """Return the bytes that decoding one token reads of `tensors`, those of all files of the model.

    Of the embedding that is one row, unless it is the output too; of experts it is the share that is used.
    """
    has_output = any(tensor.name == OUTPUT for tensor in tensors)
    return sum(
        tensor.n_bytes if tensor.name == EMBEDDING and not has_output else bytes_read(tensor, header)
        for tensor in tensors
    )


def is_of_experts(name: str) -> bool:
    """Whether the tensor `name` holds all the experts of a layer."""
    return _EXPERTS in name


def bytes_read(tensor: TensorInfo, header: Header) -> int:
    """Return the bytes that one token reads of `tensor`; of the embedding, as an input, that is one row."""
    if tensor.name == EMBEDDING:
        return tensor.n_bytes // tensor.shape[-1]
    if is_of_experts(tensor.name):
        n_experts = header.integer(f"{header.architecture}.expert_count") or 1
        n_used = header.integer(f"{header.architecture}.expert_used_count") or n_experts
        return tensor.n_bytes * n_used // n_experts
    return tensor.n_bytes
