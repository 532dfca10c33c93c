"""What turns a decoder into vectors or scores: the modules of sentence-transformers, and rankers that answer yes or no.

modules.json names the pooling, then linear modules; what llama.cpp would leave out or compute otherwise is refused.
Vectors get length one in the engine, so that a Normalize module needs nothing. Of Qwen3-Reranker the file has the
outputs of yes and no alone, and the prompt. Nothing in config.json distinguishes it from a model that chats: the title
of its card or the name of its folder does, as for llama.cpp's converter. Source of the prompt: that card.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from quantizer.architectures import Architecture
from quantizer.architectures.architecture import Hyperparameter
from quantizer.architectures.shapes import without
from quantizer.checkpoint.config import CheckpointError, Config
from quantizer.checkpoint.safetensors import as_object, read_json, read_weights
from quantizer.convert.derived_tensors import StackedTensor
from quantizer.convert.source_model import FileTensor
from quantizer.system.files import open_regular
from quantizer.tokenizers import TokenizerVocabulary

_MODULES = "modules.json"
# llama.cpp's numbers, by the names of sentence-transformers 5.1 and later and by the flags of earlier ones
_TYPES = {"mean": 1, "cls": 2, "lasttoken": 3}
_FLAGS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_lasttoken": "lasttoken"}
_FOLDER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_POOLING, _DENSE = "Pooling", "Dense"
_KINDS = ("Transformer", _POOLING, "Normalize")
_WEIGHT = "linear.weight"


@dataclass(frozen=True, slots=True)
class EmbeddingModules:
    """The modules of a folder as llama.cpp has them: rows of metadata, and tensors under names of gguf's map."""

    numbers: Mapping[str, int] = field(default_factory=dict)
    tensors: Mapping[str, FileTensor] = field(default_factory=dict)


def read_embedding_modules(folder: Path, config: Config, dense_names: Sequence[str] = ()) -> EmbeddingModules:
    """Return what a folder's modules.json says, if it has one; all its linear modules, or none, become `dense_names`.
    Raises CheckpointError for a pooling that llama.cpp does not have, several at once, and other modules behind it."""
    if not (folder / _MODULES).exists():
        return EmbeddingModules()
    modules = list(_modules(folder))
    kinds = [kind for kind, _ in modules]
    behind = kinds[kinds.index(_POOLING) :] if _POOLING in kinds else []
    has_dense = kinds.count(_DENSE) == behind.count(_DENSE) == len(dense_names)
    odd = next((kind for kind in kinds if kind not in _KINDS and not (kind == _DENSE and has_dense)), None)
    if odd is not None:
        raise CheckpointError(
            f"The model has a {odd[:64]} module behind it, which llama.cpp does not support.",
            "Choose another embedding model.",
        )
    path = next((path for kind, path in modules if kind == _POOLING), None)
    numbers = {} if path is None else {"pooling_type": _TYPES[_mode(_settings(folder, path))]}
    tensors: dict[str, FileTensor] = {}
    width = config.integer("hidden_size")
    dense = [path for kind, path in modules if kind == _DENSE]
    for name, path in zip(dense_names, dense, strict=False):
        tensor = _dense(folder, path, width)
        numbers |= {f"{name}_feat_in": width, f"{name}_feat_out": (width := tensor.shape[1])}
        tensors[f"{name}_out.weight"] = replace(tensor, name=f"{name}_out.weight")
    if width != config.integer("hidden_size"):
        raise CheckpointError(
            f"The last Dense module outputs {width} numbers; llama.cpp supports the hidden size only.",
            "Choose another embedding model.",
        )
    return EmbeddingModules(numbers, tensors)


def _dense(folder: Path, name: str, width: int) -> FileTensor:
    """Return the weight of the linear module in the folder `name`, which gets vectors of `width` numbers."""
    settings = _settings(folder, name)
    activation = str(settings.get("activation_function", "Tanh")).rpartition(".")[2]  # the default of the module
    tensors = read_weights(folder / name, "model.safetensors", folder)
    if activation != "Identity" or set(tensors) != {_WEIGHT}:
        raise CheckpointError(
            f"The Dense module {name} has an activation or a bias, which llama.cpp does not support.",
            "Choose another embedding model.",
        )
    weight, n_out = tensors[_WEIGHT], Config(settings).integer("out_features")
    if weight.shape != (width, n_out):
        found = " × ".join(map(str, reversed(weight.shape)))
        raise CheckpointError(
            f"The Dense module {name} has {found} weights, where {n_out} × {width} are needed.",
            "Download the checkpoint again.",
        )
    return weight


def _modules(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield (kind, folder) of each module; the kind is the last part of a class's name."""
    modules = read_json(folder / _MODULES)
    for module in modules if isinstance(modules, list) else [None]:
        kind, path = (module.get("type"), module.get("path")) if isinstance(module, dict) else (None, None)
        if not isinstance(kind, str) or not isinstance(path, str):
            raise CheckpointError(f"{_MODULES} is not a list of modules.", "Download the checkpoint again.")
        yield kind.rpartition(".")[2], path


def _settings(folder: Path, name: str) -> dict[str, Any]:
    if not _FOLDER.fullmatch(name):
        raise CheckpointError(
            f"{_MODULES} points outside the checkpoint folder: {name[:64]!r}.", "Download the checkpoint again."
        )
    return as_object(read_json(folder / name / "config.json"), f"{name}/config.json")


def _mode(settings: dict[str, Any]) -> str:
    named = settings.get("pooling_mode")
    flags = [key for key, value in settings.items() if key.startswith("pooling_mode_") and value is True]
    modes = [str(named)] if named is not None else [_FLAGS.get(flag, flag) for flag in flags]
    if len(modes) != 1 or modes[0] not in _TYPES:
        raise CheckpointError(
            f"The model uses {' and '.join(modes)[:128] or 'no'} pooling; llama.cpp supports {', '.join(_TYPES)}.",
            "Choose another embedding model.",
        )
    return modes[0]


_CLASS, _NAME = "Qwen3ForCausalLM", "qwen3-reranker"
_TITLE = re.compile(rf"^#\s*{_NAME}", re.IGNORECASE | re.MULTILINE)
_MAX_CARD = 1 << 16
_ANSWERS = ["yes", "no"]
_RANK = 4  # llama.cpp's number for pooling by a head that ranks
_ROWS = (
    Hyperparameter("pooling_type", "u32", _RANK),
    Hyperparameter("classifier.output_labels", "str[]", _ANSWERS),
)
PROMPT = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct"
    ' provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
    "<Query>: {query}\n<Document>: {document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)


def is_yes_no_ranker(folder: Path, config: Config) -> bool:
    if is_named_ranker(folder.resolve().name, config):
        return True
    if config.values.get("architectures") != [_CLASS]:
        return False
    try:
        with open_regular(folder / "README.md") as card:
            return _TITLE.search(card.read(_MAX_CARD).decode("utf-8", "replace")) is not None
    except OSError:
        return False


def is_named_ranker(name: str, config: Config) -> bool:
    """Return whether a checkpoint called `name` says so that it ranks by its answers."""
    return config.values.get("architectures") == [_CLASS] and _NAME in name.lower()


def ranking_entry(architecture: Architecture) -> Architecture:
    """Return the entry of a ranker: a decoder's without its output."""
    return replace(
        architecture,
        hyperparameters=(*architecture.hyperparameters, *_ROWS),
        tensors=replace(
            architecture.tensors, model=lambda config: without(architecture.tensors.model(config), "output.weight")
        ),
        names=replace(architecture.names, unused=(*architecture.names.unused, "lm_head.")),
    )


def yes_no_ranker(
    architecture: Architecture, config: Config, vocabulary: TokenizerVocabulary, tensors: Mapping[str, FileTensor]
) -> tuple[Architecture, TokenizerVocabulary, Mapping[str, StackedTensor]]:
    """Return the entry and the vocabulary that a ranker has of a decoder, and its tensors beside those of the entry.
    Raises CheckpointError where the answers are no tokens."""
    name = "model.embed_tokens.weight" if config.flag("tie_word_embeddings") else "lm_head.weight"
    texts = [token.text for token in vocabulary.tokens]
    if name not in tensors or not set(_ANSWERS) <= set(texts):
        raise CheckpointError(
            f"The model is named like a reranker, but has no {name} or no tokens for yes and no.",
            "Rename its folder if it is not a reranker.",
        )
    matrix, ids = tensors[name], [texts.index(answer) for answer in _ANSWERS]
    rows = tuple(replace(matrix.rows(row, row + 1), shape=matrix.shape[:1]) for row in ids)
    return (
        ranking_entry(architecture),
        replace(vocabulary, chat_templates={**vocabulary.chat_templates, "rerank": PROMPT}),
        {"cls.output.weight": StackedTensor("cls.output.weight", rows)},
    )
