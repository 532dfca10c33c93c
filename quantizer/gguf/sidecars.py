"""Files that lie beside their model, by name: draft heads (dspark-m.gguf, m-eagle3-Q8_0.gguf) and projectors
(mmproj-m-F16.gguf). Pure.

Source: `gguf_filename_is_model` in common/download.cpp of llama.cpp as vendored in llama-cpp-python 0.3.36.
"""

from __future__ import annotations

import re
from pathlib import PurePath

from quantizer.gguf.file_types import FILE_TYPES

__all__ = [
    "HEAD_MARKS",
    "NO_PROJECTOR",
    "PROJECTOR_MARK",
    "PROJECTOR_TYPES",
    "head_rank",
    "is_sidecar",
    "projector_name",
]

PROJECTOR_MARK = "mmproj"
# what the projector of a model may be written as, the usual type first
PROJECTOR_TYPES = ("F16", "Q8_0", "F32")
NO_PROJECTOR = "none"

HEAD_MARKS = ("dspark-", "dflash-", "eagle3-")  # those that draft a block in one pass first
_MTP = "mtp-"  # llama.cpp can take a model's MTP layer from a file of its own, and this engine cannot
_MARKS = (*HEAD_MARKS, _MTP, PROJECTOR_MARK)


def is_sidecar(name: str) -> bool:
    """Return whether the file `name` is no model of its own where it lies beside one; capitals name no such file."""
    return any(mark in name for mark in _MARKS)


def head_rank(name: str) -> int | None:
    """Return the place of the head `name` among heads of one model, the best first; None for what cannot draft."""
    marks = (index for index, mark in enumerate(HEAD_MARKS) if mark in name and name.endswith(".gguf"))
    return None if _MTP in name else next(marks, None)


_TYPE_ENDING = re.compile(rf"[-_.]({'|'.join(FILE_TYPES)})$", re.IGNORECASE)


def projector_name(model: str, type_name: str) -> str:
    """Return the name of the projector of `type_name` beside the file `model`, whose own type it leaves out."""
    return f"{PROJECTOR_MARK}-{_TYPE_ENDING.sub('', PurePath(model).stem)}-{type_name}.gguf"
