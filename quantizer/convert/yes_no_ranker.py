"""Decoders that rank by answering yes or no (Qwen3-Reranker): the file has these two outputs alone, and the prompt.

Nothing in config.json tells such a checkpoint from one that chats. Its name does: the title of its card or that of its
folder, as for llama.cpp's converter. Source of the prompt: the card of Qwen3-Reranker.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from quantizer.architectures import Architecture
from quantizer.architectures.architecture import Hyperparameter
from quantizer.checkpoint.config import Config
from quantizer.checkpoint.errors import CheckpointError
from quantizer.convert.derived_tensors import StackedTensor
from quantizer.convert.source_model import FileTensor
from quantizer.tokenizers import TokenizerVocabulary

_CLASS, _NAME = "Qwen3ForCausalLM", "qwen3-reranker"
_TITLE = re.compile(rf"^#\s*{_NAME}", re.IGNORECASE | re.MULTILINE)
_MAX_CARD = 1 << 16
_ANSWERS = ["yes", "no"]
_RANK = 4  # llama.cpp's number for pooling by a head that ranks
_ROWS = (
    Hyperparameter("pooling_type", "u32", lambda _config: _RANK),
    Hyperparameter("classifier.output_labels", "str[]", lambda _config: _ANSWERS),
)
PROMPT = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct"
    ' provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
    "<Query>: {query}\n<Document>: {document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)


@dataclass(frozen=True, slots=True)
class YesNoRanker:
    """The entry and the vocabulary of a ranker, and the tensors that it has beside those of the entry."""

    architecture: Architecture
    vocabulary: TokenizerVocabulary
    tensors: Mapping[str, StackedTensor]


def is_yes_no_ranker(folder: Path, config: Config) -> bool:
    """Return whether the checkpoint in `folder` ranks by its answers."""
    if is_named_ranker(folder.resolve().name, config):
        return True
    if config.values.get("architectures") != [_CLASS]:
        return False
    try:
        with (folder / "README.md").open(encoding="utf-8", errors="replace") as card:
            return _TITLE.search(card.read(_MAX_CARD)) is not None
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
        model_tensors=lambda config: _without_output(architecture, config),
        unused=(*architecture.unused, "lm_head."),
    )


def yes_no_ranker(
    architecture: Architecture, config: Config, vocabulary: TokenizerVocabulary, tensors: Mapping[str, FileTensor]
) -> YesNoRanker:
    """Return what a ranker has of a decoder. Raises CheckpointError where the answers are no tokens."""
    name = "model.embed_tokens.weight" if config.flag("tie_word_embeddings") else "lm_head.weight"
    texts = [token.text for token in vocabulary.tokens]
    if name not in tensors or not set(_ANSWERS) <= set(texts):
        raise CheckpointError(
            f"The model is named as one that ranks, and lacks {name} or a token for yes and no.",
            "Rename its folder if it does not rank.",
        )
    return YesNoRanker(
        ranking_entry(architecture),
        replace(vocabulary, chat_templates={**vocabulary.chat_templates, "rerank": PROMPT}),
        {"cls.output.weight": _outputs(tensors[name], [texts.index(answer) for answer in _ANSWERS])},
    )


def _without_output(architecture: Architecture, config: Config) -> Mapping[str, tuple[str | int, ...]]:
    return {name: size for name, size in architecture.model_tensors(config).items() if name != "output.weight"}


def _outputs(matrix: FileTensor, rows: Sequence[int]) -> StackedTensor:
    parts = (replace(matrix.rows(row, row + 1), shape=matrix.shape[:1]) for row in rows)
    return StackedTensor("cls.output.weight", tuple(parts))
