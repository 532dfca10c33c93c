"""The general.* metadata of a converted checkpoint: its name, licence, size and origin, as gguf reads them.

gguf takes them from the model card and the folder's name, the same way as llama.cpp's own converter.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable
from pathlib import Path

import gguf

from quantizer.checkpoint.errors import CheckpointError
from quantizer.convert.source_model import SourceTensor
from quantizer.gguf.header_encoder import Entry, encode_entry

_TYPE_NAMES = {gguf.GGUFValueType.UINT32: "u32", gguf.GGUFValueType.STRING: "str", gguf.GGUFValueType.FLOAT32: "f32"}
# What llama.cpp looks for in the name of a model, and then in its vocabulary, or else refuses the file
# (source: src/llama-vocab.cpp as vendored in llama-cpp-python 0.3.36).
_PHI = re.compile(r"phi-?3", re.IGNORECASE)
_PHI_TOKENS = frozenset({"<unk>", "<s>", "</s>", "<|endoftext|>"})


def general_entries(
    name: str,
    folder: Path,
    architecture: str,
    tensors: Collection[SourceTensor],
    words: Collection[str] = _PHI_TOKENS,
    kind: str = gguf.GGUFType.MODEL,
) -> Iterable[Entry]:
    """Yield entries about the file as a whole, a model whose tokens are `words` unless `kind` is another.

    A name that llama.cpp would take for Phi 3's, without its tokens, is spelt apart. Raises CheckpointError for a model
    card that is no YAML.
    """
    n_parameters = sum(math.prod(tensor.shape) for tensor in tensors)
    try:
        card = gguf.Metadata.load(None, folder, None, n_parameters)
    except Exception as error:  # whatever YAML and a stranger's model card may raise
        raise CheckpointError(f"The model card of {name} cannot be read: {error}.", "Repair README.md.") from error
    card.name = card.name or name
    if not _PHI_TOKENS.issubset(words):
        card.name = _PHI.sub("Phi 3", card.name)
    card.size_label = card.size_label or _size_label(tensors)
    recorder = gguf.GGUFWriter(None, architecture)
    recorder.add_type(kind)
    card.set_gguf_meta_model(recorder)
    for key, entry in recorder.kv_data[0].items():
        type_name = "str[]" if entry.type == gguf.GGUFValueType.ARRAY else _TYPE_NAMES[entry.type]
        yield encode_entry(key, entry.value, type_name)


def _size_label(tensors: Collection[SourceTensor]) -> str:
    """Return the number of weights; with experts, their number times the weights of one of them with the rest."""
    stacks = [tensor.shape for tensor in tensors if "_exps." in tensor.name]
    n_total = sum(math.prod(tensor.shape) for tensor in tensors)
    n_shared = n_total - sum(map(math.prod, stacks))
    n_of_one = sum(math.prod(shape[:-1]) for shape in stacks)
    label: str = gguf.size_label(n_total, n_shared, n_of_one, max((shape[-1] for shape in stacks), default=0))
    return label
