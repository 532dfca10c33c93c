"""Tokens added to a vocabulary after it was made, tokens with a role (begin, end, padding, fill in the middle and
others), and the tokens put around a text.

tokenizer.json lists all added tokens; without it, added_tokens.json and tokenizer_config.json do. That some of them
swallow the spaces around them is not stored in a GGUF: llama.cpp decides that by name for a few models. Sources of
roles in order: the tokenizer's settings, config.json, generation_config.json, the tokenizer kind's own file, the post-
processor (as far as llama.cpp supports it), names that published tokenizers give to a role.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from quantizer.checkpoint.config import Config
from quantizer.checkpoint.safetensors import as_object, read_object
from quantizer.tokenizers.vocabulary import MAX_TOKENS, TokenizerFolder, TokenType, unsound

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
        has_shape = any(self.content.startswith(begin) and self.content.endswith(end) for begin, end in _CONTROL_SHAPES)
        is_control = self.is_special or has_shape or self.content in _CONTROL_NAMES
        return TokenType.CONTROL if is_control else TokenType.USER_DEFINED

    @property
    def text(self) -> str:
        """The text that the runtime searches for, where spaces are still spaces."""
        return self.content if self.type is TokenType.CONTROL else self.content.replace("▁", " ")


def read_added_tokens(folder: TokenizerFolder) -> list[AddedToken]:
    """Return the added tokens of a checkpoint. Raises CheckpointError when a list of them is not sound."""
    if folder.tokenizer:
        listed = folder.tokenizer.get("added_tokens") or []
        if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed):
            raise unsound("The list of added tokens in tokenizer.json")
        return [_token(entry.get("id"), entry) for entry in listed]
    path = folder.file("added_tokens.json")
    names = read_object(path) if path else {}
    named = [_token(token_id, {"content": name}) for name, token_id in names.items()]
    by_id = {token.id: token for token in named}
    decoder = as_object(folder.settings.values.get("added_tokens_decoder") or {}, "added_tokens_decoder")
    for key, entry in decoder.items():
        token_id = int(key) if key.isdecimal() and len(key) < 10 else None
        token = _token(token_id, as_object(entry, "An added token"))
        by_id[token.id] = token
    return list(by_id.values())


def _token(token_id: object, entry: Mapping[str, Any]) -> AddedToken:
    content = entry.get("content")
    if type(token_id) is not int or not 0 <= token_id <= MAX_TOKENS or not isinstance(content, str):
        raise unsound(f"The added token {str(content)[:64]!r}")
    return AddedToken(token_id, content, bool(entry.get("special")))


# Older steps that name their two tokens instead of a template, and how often the second stands between two texts.
_FIXED = {"BertProcessing": 1, "RobertaProcessing": 2}


@dataclass(frozen=True, slots=True)
class Frame:
    """Tokens put before and after one text, and between two; empty where there are none."""

    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    between: tuple[str, ...] = ()


def read_frame(step: object) -> Frame:
    """Return the frame in a `post_processor` object, the first that is not empty when there are several steps."""
    if not isinstance(step, dict):
        return Frame()
    kind, inner = step.get("type"), step.get("processors")
    if kind == "Sequence" and isinstance(inner, list):
        return next((frame for frame in map(read_frame, inner) if frame != Frame()), Frame())
    if isinstance(kind, str) and kind in _FIXED:
        begin, end = _first_text(step.get("cls")), _first_text(step.get("sep"))
        return Frame(begin, end, end * _FIXED[kind])
    return _of_template(step) if kind == "TemplateProcessing" else Frame()


def _of_template(step: Mapping[str, Any]) -> Frame:
    single, pair = _names(step.get("single")), _names(step.get("pair"))
    if (False, "A") not in single:
        return Frame()
    text = single.index((False, "A"))
    between: tuple[str, ...] = ()
    if (False, "A") in pair and (False, "B") in pair:
        between = _special(pair[pair.index((False, "A")) : pair.index((False, "B"))])
    return Frame(_special(single[:text]), _special(single[text:]), between)


def _names(template: object) -> list[tuple[bool, str]]:
    """Return (whether it is a special token, its name) of each part."""
    parts = template if isinstance(template, list) else []
    return [
        (key == "SpecialToken", str(value.get("id")))
        for part in parts
        if isinstance(part, dict)
        for key, value in part.items()
        if isinstance(value, dict)
    ]


def _special(names: list[tuple[bool, str]]) -> tuple[str, ...]:
    return tuple(name for is_special, name in names if is_special)


def _first_text(pair: object) -> tuple[str, ...]:
    return (pair[0],) if isinstance(pair, list) and pair and isinstance(pair[0], str) else ()


_CONFIGURED = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
# Names by role, the first that is in the vocabulary counts (source: src/llama-vocab.cpp in llama-cpp-python 0.3.36,
# which looks for them in no order).
_ROLE_NAMES = {
    "eot": ("<|eot_id|>", "<|im_end|>", "<end_of_turn>", "<|end|>", "<EOT>", "_<EOT>", "[EOT]", "<end_of_utterance>"),
    "eom": ("<|eom_id|>",),
    "fim_pre": (
        *("<|fim_prefix|>", "<fim_prefix>", "<fim-prefix>", "<PRE>", "▁<PRE>", "<｜fim▁begin｜>"),
        *("<|code_prefix|>", "<|prefix|>"),
    ),
    "fim_suf": (
        *("<|fim_suffix|>", "<fim_suffix>", "<fim-suffix>", "<SUF>", "▁<SUF>", "<｜fim▁hole｜>"),
        *("<|code_suffix|>", "<|suffix|>"),
    ),
    "fim_mid": (
        *("<|fim_middle|>", "<fim_middle>", "<fim-middle>", "<MID>", "▁<MID>", "<｜fim▁end｜>"),
        *("<|code_middle|>", "<|middle|>"),
    ),
    "fim_pad": ("<|fim_pad|>", "<fim_pad>", "<fim-pad>", "<PAD>"),
    "fim_rep": ("<|repo_name|>", "<|fim_repo|>", "<fim-repo>", "<reponame>", "<REPO>"),
    "fim_sep": ("<|file_sep|>", "<file_sep>"),
}
# Names that end an answer in llama.cpp whatever the metadata (same source).
_KNOWN_ENDS = frozenset(_ROLE_NAMES["eot"] + _ROLE_NAMES["eom"]) | {
    *("<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<|endoftext|>", "</s>", "[EOS]", "<|end_of_text|>"),
    *("<eos>", "<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~["),
}
_SPARE_ENDS = ("eot", "eom")


def read_special_ids(
    folder: TokenizerFolder, config: Config, named: Mapping[str, int], frame: Frame, ids: Mapping[str, int]
) -> dict[str, int]:
    """Return ids by role; `named` comes from the kind's own file, `ids` has every token. Of further tokens that end an
    answer, metadata can name two besides those that llama.cpp recognises by name."""
    found = {role: _configured(role, folder, config, ids) for role in _CONFIGURED}
    found = {role: named.get(role) if token_id is None else token_id for role, token_id in found.items()}
    _complete_by_frame(found, frame, ids)
    for role, names in _ROLE_NAMES.items():
        if found.get(role) is None:
            found[role] = next((ids[name] for name in names if name in ids), None)
    free_ends = [role for role in _SPARE_ENDS if found.get(role) is None]
    for role, token_id in zip(free_ends, _unnamed_ends(folder, config, found, ids), strict=False):
        found[role] = token_id
    return {role: token_id for role, token_id in found.items() if token_id is not None}


def read_additions(
    folder: TokenizerFolder, frame: Frame, special_ids: Mapping[str, int], ids: Mapping[str, int]
) -> dict[str, bool]:
    """Return whether begin, end and separator are put around a text, by a setting or by the frame. Without a
    tokenizer.json or a setting there is no entry: the runtime's default for a kind fits its tokenizers."""
    ends = {"bos": ids.get(frame.before[0]) if frame.before else None, "eos": _last_id(frame, ids)}
    added: dict[str, bool] = {}
    for role, token_id in ends.items():
        setting = folder.settings.flag(f"add_{role}_token")
        if setting is not None or folder.tokenizer:
            is_added = token_id == special_ids.get(role) if setting is None else setting
            added[role] = is_added and role in special_ids
    if frame.between:
        # between two texts the runtime puts the end of the first, then the separator
        is_separator = ids.get(frame.between[-1]) in (special_ids.get("sep"), special_ids.get("eos"))
        added["sep"] = is_separator and len(frame.between) > len(frame.after)
    return added


def _configured(role: str, folder: TokenizerFolder, config: Config, ids: Mapping[str, int]) -> int | None:
    entry = folder.settings.values.get(f"{role}_token")
    token = entry.get("content") if isinstance(entry, dict) else entry
    if isinstance(token, str) and token in ids:
        return ids[token]
    known = set(ids.values())
    listed = (i for source in (config, folder.generation) for i in _listed(source, role))
    return next((i for i in listed if i in known), None)


def _listed(config: Config, role: str) -> list[int]:
    """Return ids of a role, which a config gives as a number or as a list of them."""
    value = config.values.get(f"{role}_token_id")
    return [i for i in (value if isinstance(value, list) else [value]) if type(i) is int]


def _complete_by_frame(found: dict[str, int | None], frame: Frame, ids: Mapping[str, int]) -> None:
    """Begin and end that have no name of their own are those of the frame, or BERT's."""
    only = ids.get(frame.before[0]) if len(frame.before) == 1 else None
    for role, fallbacks in {"bos": (found["cls"], only), "eos": (found["sep"], _last_id(frame, ids))}.items():
        if found[role] is None:
            found[role] = next((i for i in fallbacks if i is not None), None)
    last = _last_id(frame, ids)
    # a tokenizer that ends texts with another token than answers end with: both are needed
    if last is not None and last != found["eos"]:
        found["eot"], found["eos"] = found["eos"], last


def _last_id(frame: Frame, ids: Mapping[str, int]) -> int | None:
    return ids.get(frame.after[-1]) if frame.after else None


def _unnamed_ends(
    folder: TokenizerFolder, config: Config, found: Mapping[str, int | None], ids: Mapping[str, int]
) -> Iterator[int]:
    """Yield ids that end an answer, whose names llama.cpp does not recognise."""
    names = {token_id: name for name, token_id in ids.items()}
    roles = {found.get(role) for role in ("eos", *_SPARE_ENDS)}
    for token_id in dict.fromkeys([*_listed(config, "eos"), *_listed(folder.generation, "eos")]):
        if token_id in names and token_id not in roles and names[token_id] not in _KNOWN_ENDS:
            yield token_id
