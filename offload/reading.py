"""How many bytes of weights one token makes the processor read. Pure.

Owns which tensors a token touches. Knows nothing of caches or of speed.
"""

from __future__ import annotations

from collections.abc import Sequence

from quantizer.header import Header, TensorInfo

__all__ = ["weight_bytes_per_token"]

_EMBEDDING, _OUTPUT = "token_embd.weight", "output.weight"
_EXPERTS = "_exps."  # tensors that hold all experts of a layer, one behind the other


def weight_bytes_per_token(header: Header, tensors: Sequence[TensorInfo]) -> int:
    """Return the bytes that decoding one token reads of `tensors`, those of all files of the model.

    Of the embedding that is one row, unless it is the output too; of experts it is the share that is used.
    """
    has_output = any(tensor.name == _OUTPUT for tensor in tensors)
    return sum(_bytes_read(tensor, header, has_output) for tensor in tensors)


def _bytes_read(tensor: TensorInfo, header: Header, has_output: bool) -> int:
    if tensor.name == _EMBEDDING and has_output:
        return tensor.n_bytes // tensor.shape[-1]
    if _EXPERTS in tensor.name:
        n_experts = header.integer(f"{header.architecture}.expert_count") or 1
        n_used = header.integer(f"{header.architecture}.expert_used_count") or n_experts
        return tensor.n_bytes * n_used // n_experts
    return tensor.n_bytes
