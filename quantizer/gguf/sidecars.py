"""Files that lie beside their model, by name: draft heads (dspark-m.gguf, m-eagle3-Q8_0.gguf) and projectors
(mmproj-m-F16.gguf). Pure.

Source: `gguf_filename_is_model` in common/download.cpp of llama.cpp as vendored in llama-cpp-python 0.3.36.
"""

from __future__ import annotations

import re
from pathlib import PurePath

from quantizer.gguf.file_types import FILE_TYPES

PROJECTOR_MARK = "mmproj"
# what the projector of a model may be written as, the usual type first
PROJECTOR_TYPES = ("F16", "Q8_0", "F32")
FOUND_TYPES = ("F16", "BF16", "Q8_0", "F32")  # of several projectors that are there the first
NO_PROJECTOR = "none"  # as a choice of one

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


_TYPE_ENDING = re.compile(rf"[-_.](UD-)?({'|'.join(FILE_TYPES)})$", re.IGNORECASE)
_NAMELESS = re.compile(r"(ggml|gguf|model|vision|audio|[-_.])*", re.IGNORECASE)  # what names no model


def projector_name(model: str, type_name: str) -> str:
    """Return the name of the projector of `type_name`, if known, beside the file `model`, whose own type it leaves
    out."""
    parts = filter(None, (PROJECTOR_MARK, without_type(PurePath(model).stem), type_name))
    return f"{'-'.join(parts)}.gguf"


def without_type(stem: str) -> str:
    """Return the stem of a file's name without the type at its end."""
    return _TYPE_ENDING.sub("", stem)


def is_projector(name: str) -> bool:
    """Return whether the file `name` is called a projector, in capitals too."""
    return PROJECTOR_MARK in name.lower() and name.lower().endswith(".gguf")


def projector_owner(name: str) -> str:
    """Return the model that the projector `name` names, in lower case; empty for mmproj-F16.gguf and the like."""
    stem = without_type(PurePath(name).stem).lower().replace(PROJECTOR_MARK, "")
    return "" if _NAMELESS.fullmatch(stem) else without_type(stem.strip("-_."))


def names_model(owner: str, model: str) -> bool:
    """Return whether the `owner` of a projector is the model whose file has the stem `model`, or begins like it."""
    stem = without_type(model).lower()
    return bool(owner) and (stem.startswith(owner) or owner.startswith(stem))
