"""The tokenizer's files in a checkpoint folder with its chat templates, and a vocabulary as the GGUF metadata that
llama.cpp reads. Templates are rendered elsewhere, sandboxed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

from quantizer.checkpoint.config import CheckpointError, Config
from quantizer.checkpoint.safetensors import as_object, read_object
from quantizer.gguf.header import Entry, encode_entry
from quantizer.system.files import explained, open_regular, read_at_most


@dataclass(frozen=True, slots=True)
class TokenizerFolder:
    """`tokenizer` is tokenizer.json, empty when there is none; the others are empty likewise."""

    path: Path
    tokenizer: Mapping[str, Any]
    settings: Config
    generation: Config

    @classmethod
    def read(cls, path: Path) -> TokenizerFolder:
        """Parse what is there. Raises CheckpointError for a file that is not an object of JSON."""
        return cls(
            path,
            _optional_object(path / "tokenizer.json"),
            Config(_optional_object(path / "tokenizer_config.json")),
            Config(_optional_object(path / "generation_config.json")),
        )

    @property
    def model(self) -> dict[str, Any]:
        return as_object(self.tokenizer.get("model"), "the model in tokenizer.json")

    def file(self, *names: str) -> Path | None:
        return next((self.path / name for name in names if (self.path / name).is_file()), None)


def read_bytes(path: Path, max_bytes: int) -> bytes:
    """Return the whole of a file. Raises CheckpointError when it is larger than `max_bytes` or cannot be read."""
    with explained(f"{path} cannot be read", "Check its permissions.", CheckpointError), open_regular(path) as file:
        data = read_at_most(file, max_bytes + 1)
    if len(data) > max_bytes:
        raise CheckpointError(f"{path.name} is too large.", "Download the checkpoint again.")
    return data


def read_text(path: Path, max_bytes: int) -> str:
    try:
        return read_bytes(path, max_bytes).decode("utf-8")
    except UnicodeDecodeError as error:
        raise unsound(path.name) from error


def unsound(noun: str) -> CheckpointError:
    return CheckpointError(f"{noun} is invalid.", "Download the checkpoint again.")


def _optional_object(path: Path) -> dict[str, Any]:
    return read_object(path) if path.exists() else {}


DEFAULT_TEMPLATE = "default"
_MAX_TEMPLATE_BYTES = 4 << 20
_MAX_TEMPLATES = 64


def read_chat_templates(folder: TokenizerFolder) -> dict[str, str]:
    """Return templates by name, "default" being the one without; files go before settings, as they do in transformers.
    With `chat_template.jinja` those of the settings do not count at all. Raises CheckpointError for files and settings
    that hold no text."""
    main = folder.file("chat_template.jinja")
    if main:
        templates = {}
    else:
        # the tokenizer's, else the processor's; a file of its own precedes both
        processor = folder.path / "processor_config.json"
        templates = _in_settings(folder.settings.values.get("chat_template"))
        templates = templates or _in_settings(_optional_object(processor).get("chat_template"))
        templates |= _in_settings(_optional_object(folder.path / "chat_template.json").get("chat_template"))
    files = {DEFAULT_TEMPLATE: main} if main else {}
    files |= {path.stem: path for path in sorted((folder.path / "additional_chat_templates").glob("*.jinja"))}
    templates |= {name: read_text(path, _MAX_TEMPLATE_BYTES) for name, path in files.items()}
    if len(templates) > _MAX_TEMPLATES:
        raise unsound("The list of chat templates")
    return templates


def _in_settings(setting: object) -> dict[str, str]:
    if setting is None:
        return {}
    if isinstance(setting, str):
        return {DEFAULT_TEMPLATE: setting}
    if isinstance(setting, dict):
        setting = [{"name": name, "template": template} for name, template in setting.items()]
    if not isinstance(setting, list) or not all(isinstance(entry, dict) for entry in setting):
        raise unsound("The chat template")
    templates = {}
    for entry in setting:
        name, template = entry.get("name"), entry.get("template")
        if not isinstance(name, str) or not isinstance(template, str):
            raise unsound("The list of chat templates")
        templates[name] = template
    return templates


MAX_TOKENS = 2_000_000
# where they stand in published vocabularies: below whatever a text is made of
_ADDED_SCORE, _PADDING_SCORE = -1_000.0, -10_000.0


class TokenType(IntEnum):
    """llama.cpp's kinds of token (include/llama.h), which are SentencePiece's too."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Token:
    """One entry of a vocabulary; `score` decides between ways to split a text, where the kind has scores."""

    text: str
    type: TokenType = TokenType.NORMAL
    score: float = 0.0


@dataclass(frozen=True, slots=True)
class Alphabet:
    """What the kind of tokenizer gives a vocabulary: tokens by id, before special ones, and how text is cut. `model`
    and `pre_tokenizer` are llama.cpp's names; `flags` are its keys, such as `add_space_prefix`. `special_ids` holds
    what the kind itself names, by the role's short name."""

    model: str
    tokens: Mapping[int, Token]
    pre_tokenizer: str = "default"
    merges: tuple[str, ...] = ()
    flags: Mapping[str, bool] = field(default_factory=dict)
    charsmap: bytes = b""
    special_ids: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TokenizerVocabulary:
    """A whole vocabulary: `tokens` by id, as many as the embedding has rows. `special_ids` by role, such as `bos` or
    `fim_pre`; `additions` has by role what is put around a text, and no entry where the runtime's own habit is right;
    `chat_templates` by name, `default` among them."""

    alphabet: Alphabet
    tokens: tuple[Token, ...]
    special_ids: Mapping[str, int]
    additions: Mapping[str, bool]
    chat_templates: Mapping[str, str]
    n_token_types: int | None = None


def token_list(alphabet: Mapping[int, Token], added: Iterable[tuple[int, str, TokenType]], n_rows: int) -> list[Token]:
    """Return tokens by id: added ones over those of the alphabet, and padding for further rows of the embedding. An
    added token beyond the embedding is left out, for the model has no row for it. Raises CheckpointError when no
    vocabulary has `n_rows`, the alphabet itself does not fit, or two tokens read the same."""
    if not 0 < n_rows <= MAX_TOKENS:
        raise CheckpointError(f"config.json has vocab_size = {n_rows}.", "Check config.json.")
    added = tuple(added)
    extra = {token_id for token_id, _text, _kind in added if token_id >= n_rows}
    alphabet = {token_id: token for token_id, token in alphabet.items() if token_id not in extra}
    if alphabet and max(alphabet) >= n_rows:
        raise CheckpointError(
            f"The tokenizer's {len(alphabet)} tokens do not fit into the model's vocabulary of {n_rows}.",
            "Download the checkpoint again.",
        )
    tokens = [Token(f"[PAD{i}]", TokenType.UNUSED, _PADDING_SCORE) for i in range(n_rows)]
    for token_id, token in alphabet.items():
        tokens[token_id] = token
    for token_id, text, kind in added:
        if token_id < n_rows:
            stays_unknown = tokens[token_id].type is TokenType.UNKNOWN
            tokens[token_id] = Token(text, TokenType.UNKNOWN if stays_unknown else kind, _ADDED_SCORE)
    # llama.cpp reads up to a NUL, names an empty token by its id, and aborts on equal ones
    seen: set[str] = set()
    for token in tokens:
        text = token.text.partition("\0")[0]
        if text and text in seen:
            raise CheckpointError(
                f"Two tokens of the vocabulary are equal: {text[:64]!r}.", "Download the checkpoint again."
            )
        seen.add(text)
    return tokens


_PREFIX = "tokenizer.ggml"
_CHAT_TEMPLATE = "tokenizer.chat_template"
# where llama.cpp's key is not the role's short name; one of them is misspelt there
_ROLE_KEYS = {"unk": "unknown", "pad": "padding", "sep": "seperator"}


def vocabulary_entries(vocabulary: TokenizerVocabulary) -> Iterator[Entry]:
    """Yield every entry that describes `vocabulary`, the long lists first."""
    alphabet = vocabulary.alphabet
    yield encode_entry(f"{_PREFIX}.model", alphabet.model, "str")
    yield encode_entry(f"{_PREFIX}.pre", alphabet.pre_tokenizer, "str")
    yield encode_entry(f"{_PREFIX}.tokens", [token.text for token in vocabulary.tokens], "str[]")
    if alphabet.model in ("llama", "t5"):  # those that split by scores
        yield encode_entry(f"{_PREFIX}.scores", [token.score for token in vocabulary.tokens], "f32[]")
    yield encode_entry(f"{_PREFIX}.token_type", [int(token.type) for token in vocabulary.tokens], "i32[]")
    if vocabulary.n_token_types is not None:
        yield encode_entry(f"{_PREFIX}.token_type_count", vocabulary.n_token_types, "u32")
    if alphabet.merges:
        yield encode_entry(f"{_PREFIX}.merges", alphabet.merges, "str[]")
    if alphabet.charsmap:
        yield encode_entry(f"{_PREFIX}.precompiled_charsmap", alphabet.charsmap, "u8[]")
    for role, token_id in vocabulary.special_ids.items():
        yield encode_entry(f"{_PREFIX}.{_ROLE_KEYS.get(role, role)}_token_id", token_id, "u32")
    for role, is_added in vocabulary.additions.items():
        yield encode_entry(f"{_PREFIX}.add_{role}_token", is_added, "bool")
    for key, value in alphabet.flags.items():
        yield encode_entry(f"{_PREFIX}.{key}", value, "bool")
    yield from _chat_templates(vocabulary)


def _chat_templates(vocabulary: TokenizerVocabulary) -> Iterator[Entry]:
    named = {re.sub(r"[^A-Za-z0-9]", "_", name): text for name, text in vocabulary.chat_templates.items() if name}
    if DEFAULT_TEMPLATE in named:
        yield encode_entry(_CHAT_TEMPLATE, named.pop(DEFAULT_TEMPLATE), "str")
    if named:
        yield encode_entry("tokenizer.chat_templates", list(named), "str[]")
    for name, text in named.items():
        yield encode_entry(f"{_CHAT_TEMPLATE}.{name}", text, "str")
