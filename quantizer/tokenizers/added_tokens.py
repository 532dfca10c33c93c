"""Tokens added to a vocabulary after it was made: special ones, and words matched as they are.

tokenizer.json lists them all; without it, added_tokens.json and tokenizer_config.json do. That some of them swallow the
spaces around them is not stored in a GGUF: llama.cpp decides that by name for a few models.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from quantizer.checkpoint.safetensors import read_json
from quantizer.tokenizers.folder import TokenizerFolder, as_object, unsound
from quantizer.tokenizers.vocabulary import MAX_TOKENS, TokenType

__all__ = ["AddedToken", "read_added_tokens"]

# Control tokens that published checkpoints forget to mark, besides the shapes below (source: llama.cpp's converter).
_CONTROL_NAMES = {"<pad>", "<mask>", "<2mass>", "[@BOS@]"}
_CONTROL_SHAPES = (("<|", "|>"), ("<｜", "｜>"), ("<unused", ">"))


@dataclass(frozen=True, slots=True)
class AddedToken:
    """A token that is found in a text before anything else is."""

    id: int
    content: str
    is_special: bool

    @property
    def type(self) -> TokenType:
        """Control or user-defined."""
        return TokenType.CONTROL if self.is_special or _looks_special(self.content) else TokenType.USER_DEFINED

    @property
    def text(self) -> str:
        """The text that the runtime searches for, where spaces are still spaces."""
        return self.content if self.type is TokenType.CONTROL else self.content.replace("▁", " ")


def read_added_tokens(folder: TokenizerFolder) -> list[AddedToken]:
    """Return the added tokens of a checkpoint. Raises CheckpointError when a list of them is not sound."""
    if folder.tokenizer:
        return list(_listed(folder.tokenizer.get("added_tokens") or []))
    by_id = {token.id: token for token in _named(folder)}
    decoder = as_object(folder.settings.values.get("added_tokens_decoder") or {}, "added_tokens_decoder")
    by_id |= {token.id: token for token in map(_decoded, decoder.items())}
    return list(by_id.values())


def _listed(entries: object) -> Iterator[AddedToken]:
    if not isinstance(entries, list):
        raise unsound("The list of added tokens in tokenizer.json")
    for entry in entries:
        if not isinstance(entry, dict):
            raise unsound("The list of added tokens in tokenizer.json")
        yield _token(entry.get("id"), entry)


def _named(folder: TokenizerFolder) -> Iterator[AddedToken]:
    path = folder.file("added_tokens.json")
    names = as_object(read_json(path), path.name) if path else {}
    for content, token_id in names.items():
        yield _token(token_id, {"content": content})


def _decoded(item: tuple[str, Any]) -> AddedToken:
    key, entry = item
    return _token(int(key) if key.isdecimal() and len(key) < 10 else None, as_object(entry, "An added token"))


def _token(token_id: object, entry: Mapping[str, Any]) -> AddedToken:
    content = entry.get("content")
    if type(token_id) is not int or not 0 <= token_id <= MAX_TOKENS or not isinstance(content, str):
        raise unsound(f"The added token {str(content)[:64]!r}")
    return AddedToken(token_id, content, bool(entry.get("special")))


def _looks_special(content: str) -> bool:
    return content in _CONTROL_NAMES or any(
        content.startswith(begin) and content.endswith(end) for begin, end in _CONTROL_SHAPES
    )
