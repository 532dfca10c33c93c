"""What a GGUF holds where it is not a model that answers: adapters, projectors and the like look the same from outside.

Owns what each of them is called, and what to do with it instead. Knows nothing of whether a file is sound.
"""

from __future__ import annotations

from quantizer.errors import ModelFileError
from quantizer.header import Header

__all__ = ["check_answers", "check_no_matrix"]

_MATRIX = "imatrix"
_NO_MODELS = {
    _MATRIX: ("an importance matrix", "Give it to `localllm quantize` with --imatrix."),
    "adapter": ("a LoRA adapter", "Name the model that it is for, and the adapter with --lora."),
    "controlvector": ("a control vector", "Name the model that it is for, and the vector with --control-vector."),
    "mmproj": ("a projector, which turns pictures into tokens", "Name the model that lies beside it."),
}
_ARCHITECTURES = {"clip": "mmproj", "controlvector": "controlvector"}  # older files say it so
_NO_TOKENIZER = ("", "no_vocab", "none")


def check_no_matrix(header: Header) -> None:
    """Raise ModelFileError for an importance matrix, which has nothing that a model has."""
    if header.text("general.type") == _MATRIX:
        _refuse(header, _MATRIX)


def check_answers(header: Header, *, needs_tokenizer: bool) -> None:
    """Raise ModelFileError, saying what the file is, for one that no question can be put to."""
    kind = _ARCHITECTURES.get(header.architecture, header.text("general.type"))
    if kind in _NO_MODELS:
        _refuse(header, kind)
    if needs_tokenizer and header.text("tokenizer.ggml.model") in _NO_TOKENIZER:
        raise ModelFileError(
            f"{header.path.name} has no tokenizer: no text can be put to it.",
            "Convert it anew from a checkpoint with its tokenizer's files, or download another.",
        )


def _refuse(header: Header, kind: str) -> None:
    what, remedy = _NO_MODELS[kind]
    raise ModelFileError(f"{header.path.name} is {what}, not a model.", remedy)
