"""Draft heads that lie beside their model, by name: dspark-m.gguf, m-eagle3-Q8_0.gguf. Pure.

Source: `gguf_filename_is_model` in common/download.cpp of llama.cpp as vendored in llama-cpp-python 0.3.36.
"""

from __future__ import annotations

__all__ = ["HEAD_MARKS", "head_rank", "is_sidecar"]

HEAD_MARKS = ("dspark-", "dflash-", "eagle3-")  # those that draft a block in one pass first
_MARKS = (*HEAD_MARKS, "mtp-")  # llama.cpp can take a model's MTP layer from a file of its own, and this engine cannot


def is_sidecar(name: str) -> bool:
    """Return whether the file `name` is no model of its own where it lies beside one; capitals name no such file."""
    return any(mark in name for mark in _MARKS)


def head_rank(name: str) -> int | None:
    """Return the place of the head `name` among heads of one model, the best first; None for what cannot draft."""
    marks = (index for index, mark in enumerate(HEAD_MARKS) if mark in name and name.endswith(".gguf"))
    return None if _MARKS[-1] in name else next(marks, None)
