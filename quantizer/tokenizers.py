"""The vocabulary of a checkpoint as llama.cpp wants it, from tokenizer.json and tokenizer_config.json.

Byte-level BPE now. Owns tokens, their types, merges, special ids, what is added around a text, the chat template; the
pre-tokenizer's name is `quantizer.pretokenizers`' business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantizer.checkpoint import read_json
from quantizer.config import Config
from quantizer.errors import CheckpointError
from quantizer.pretokenizers import recognise

__all__ = ["TokenType", "Vocabulary", "read_vocabulary"]


class TokenType:
    """llama.cpp's kinds of token (include/llama.h)."""

    NORMAL = 1
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A byte-level BPE vocabulary; `special_ids` by llama.cpp's key, such as `bos` or `fim_pre`."""

    tokens: tuple[str, ...]
    types: tuple[int, ...]
    merges: tuple[str, ...]
    pre_tokenizer: str
    special_ids: Mapping[str, int]
    add_bos: bool
    add_eos: bool
    chat_template: str | None


# Names that published tokenizers give to these roles; the first that is in the vocabulary counts.
_ROLE_NAMES = {
    "eot": ("<|eot_id|>", "<|im_end|>", "<end_of_turn>", "<|end|>"),
    "fim_pre": ("<|fim_prefix|>", "<fim_prefix>", "<fim-prefix>", "<PRE>"),
    "fim_suf": ("<|fim_suffix|>", "<fim_suffix>", "<fim-suffix>", "<SUF>"),
    "fim_mid": ("<|fim_middle|>", "<fim_middle>", "<fim-middle>", "<MID>"),
    "fim_pad": ("<|fim_pad|>", "<fim_pad>", "<fim-pad>"),
    "fim_rep": ("<|repo_name|>", "<|fim_repo|>", "<fim-repo>", "<reponame>"),
    "fim_sep": ("<|file_sep|>", "<file_sep>"),
}
_CONFIGURED = {"bos": "bos_token", "eos": "eos_token", "unk": "unk_token", "pad": "pad_token"}
_MAX_TOKENS = 2_000_000


def read_vocabulary(folder: Path, config: Config) -> Vocabulary:
    """Read the tokenizer in `folder`; `config` is the model's, whose vocab_size pads the list.

    Raises CheckpointError for tokenizers of another kind, and for anything inconsistent.
    """
    tokenizer = _object(read_json(folder / "tokenizer.json"), "tokenizer.json")
    settings = _optional_object(folder / "tokenizer_config.json")
    model = _object(tokenizer.get("model"), "the model in tokenizer.json")
    _check_kind(model, tokenizer)
    ids = _token_ids(model, tokenizer, config.integer("vocab_size"))
    special_ids = _special_ids(ids, settings, config)
    tokens, types = _listed(ids, tokenizer, config.integer("vocab_size"))
    add_bos, add_eos = _added_around(tokenizer, settings, ids, special_ids)
    return Vocabulary(
        tokens,
        types,
        _merges(model),
        recognise(tokenizer, bool(model.get("ignore_merges", False))),
        special_ids,
        add_bos,
        add_eos,
        _chat_template(folder, settings),
    )


def _check_kind(model: Mapping[str, Any], tokenizer: Mapping[str, Any]) -> None:
    if model.get("type", "BPE") != "BPE" or model.get("byte_fallback"):
        kind = "SentencePiece" if model.get("byte_fallback") else str(model.get("type"))[:32]
        raise CheckpointError(f"The tokenizer is of the kind {kind}, not byte-level BPE.", "Look for a GGUF of it.")
    if tokenizer.get("normalizer") not in (None, {"type": "NFC"}):
        raise CheckpointError("The tokenizer rewrites text before splitting it.", "Look for a GGUF of this model.")


def _token_ids(model: Mapping[str, Any], tokenizer: Mapping[str, Any], vocab_size: int) -> dict[str, int]:
    ids = dict(_object(model.get("vocab"), "the vocabulary in tokenizer.json"))
    for added in _added_tokens(tokenizer):
        ids[added["content"]] = added["id"]
    if not 0 < len(ids) <= _MAX_TOKENS or not all(type(i) is int and i >= 0 for i in ids.values()):
        raise CheckpointError("The vocabulary in tokenizer.json is not sound.", "Download the checkpoint again.")
    if max(ids.values()) >= vocab_size or len(set(ids.values())) != len(ids):
        raise CheckpointError(
            f"The tokenizer's {len(ids)} tokens do not fit the model's {vocab_size}.", "Download the checkpoint again."
        )
    return ids


def _added_tokens(tokenizer: Mapping[str, Any]) -> list[dict[str, Any]]:
    added = tokenizer.get("added_tokens") or []
    if not isinstance(added, list) or not all(
        isinstance(token, dict) and isinstance(token.get("content"), str) and type(token.get("id")) is int
        for token in added
    ):
        raise CheckpointError("The added tokens in tokenizer.json are not sound.", "Download the checkpoint again.")
    return added


def _listed(
    ids: Mapping[str, int], tokenizer: Mapping[str, Any], vocab_size: int
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Tokens and types by id; ids that no token has are padded, as the embedding has rows for them."""
    if vocab_size > _MAX_TOKENS:
        raise CheckpointError(f"config.json says vocab_size = {vocab_size}.", "Check config.json.")
    tokens = [f"[PAD{i}]" for i in range(vocab_size)]
    types = [TokenType.UNUSED] * vocab_size
    for token, token_id in ids.items():
        tokens[token_id], types[token_id] = token, TokenType.NORMAL
    for added in _added_tokens(tokenizer):
        is_control = bool(added.get("special")) or _looks_special(added["content"])
        types[added["id"]] = TokenType.CONTROL if is_control else TokenType.USER_DEFINED
    return tuple(tokens), tuple(types)


def _looks_special(token: str) -> bool:
    """Some checkpoints forget to mark their control tokens."""
    return token in ("<pad>", "<mask>") or (token.startswith("<|") and token.endswith("|>"))


def _merges(model: Mapping[str, Any]) -> tuple[str, ...]:
    merges = model.get("merges")
    if not isinstance(merges, list) or not merges:
        raise CheckpointError("tokenizer.json has no merges.", "Download the checkpoint again.")
    return tuple(_merge(merge) for merge in merges)


def _merge(merge: object) -> str:
    """One pair, which older files write as a string and newer ones as a list."""
    parts = merge.split(" ") if isinstance(merge, str) else merge
    if not isinstance(parts, list) or len(parts) != 2 or not all(isinstance(part, str) and part for part in parts):
        raise CheckpointError(f"tokenizer.json has the odd merge {str(merge)[:64]!r}.", "Download it again.")
    return " ".join(part.replace(" ", "Ġ") for part in parts)


def _special_ids(ids: Mapping[str, int], settings: Config, config: Config) -> dict[str, int]:
    found = {role: _configured_id(role, key, ids, settings, config) for role, key in _CONFIGURED.items()}
    for role, names in _ROLE_NAMES.items():
        found[role] = next((ids[name] for name in names if name in ids), None)
    return {role: token_id for role, token_id in found.items() if token_id is not None}


def _configured_id(role: str, key: str, ids: Mapping[str, int], settings: Config, config: Config) -> int | None:
    entry = settings.values.get(key)
    token = entry.get("content") if isinstance(entry, dict) else entry
    if isinstance(token, str) and token in ids:
        return ids[token]
    named = config.values.get(f"{role}_token_id")
    first = named[0] if isinstance(named, list) and named else named
    return first if type(first) is int and first in ids.values() else None


def _added_around(
    tokenizer: Mapping[str, Any], settings: Config, ids: Mapping[str, int], special_ids: Mapping[str, int]
) -> tuple[bool, bool]:
    """Whether begin and end tokens are put around a text: said outright, or by the post-processor's template."""
    template = _template(tokenizer.get("post_processor"))
    first = ids.get(template[0]) if template else None
    last = ids.get(template[-1]) if template else None
    add_bos, add_eos = settings.flag("add_bos_token"), settings.flag("add_eos_token")
    bos, eos = special_ids.get("bos"), special_ids.get("eos")
    return (
        bos is not None and (add_bos if add_bos is not None else first == bos),
        eos is not None and (add_eos if add_eos is not None else last == eos),
    )


def _template(step: object) -> list[str]:
    """Names in the post-processor's template for one text, `A` standing for the text itself."""
    if not isinstance(step, dict):
        return []
    if step.get("type") == "Sequence" and isinstance(step.get("processors"), list):
        return next((names for names in map(_template, step["processors"]) if names), [])
    single = step.get("single")
    if step.get("type") != "TemplateProcessing" or not isinstance(single, list):
        return []
    return [str(part["id"]) for piece in single if isinstance(piece, dict) for part in _parts(piece)]


def _parts(piece: dict[str, Any]) -> list[dict[str, Any]]:
    return [part for part in piece.values() if isinstance(part, dict) and "id" in part]


def _chat_template(folder: Path, settings: Config) -> str | None:
    """The default chat template, from the settings or from the file that newer checkpoints keep it in."""
    template = settings.values.get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    if isinstance(template, str):
        return template
    path = folder / "chat_template.jinja"
    return path.read_text(encoding="utf-8") if path.is_file() else None


def _optional_object(path: Path) -> Config:
    return Config(_object(read_json(path), path.name)) if path.exists() else Config({})


def _object(value: object, noun: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise CheckpointError(f"{noun} is not an object.", "Download the checkpoint again.")
    return value
