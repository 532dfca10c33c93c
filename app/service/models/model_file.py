"""A model file as requests need it before an engine loads it, and what the settings attach to the default model.

Reads the header only: chat template, fill-in-the-middle tokens, whether it takes pictures or sounds. Validates LoRA
adapters (FILE[=NAME]), control vectors (FILE[=SCALE]) and the draft model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from app.library.local.model_files import FileIdentity, identity_of
from app.library.local.projectors import NOTHING_FOUND, FoundProjector, choose_projector, projector_stamp
from app.library.local.recipe import NO_RECIPE, Recipe, read_recipe
from app.library.local.resolve import absolute, resolve
from app.settings.settings import NO_DRAFT, Settings
from quantizer.gguf.adapters import read_control_vector, validate_adapter
from quantizer.gguf.header import Header
from quantizer.gguf.validation import check_answers, validate_gguf
from quantizer.system.errors import UsageError

Modality: TypeAlias = Literal["text", "image", "audio"]
ModelTask: TypeAlias = Literal["text", "vectors", "ranking"]  # what a model was made for

MAX_SCALE = 100.0
_RANK = 4  # as a `pooling_type`
_WITH_ENCODER = ("t5", "t5encoder")  # only the encoder runs


@dataclass(frozen=True, slots=True)
class Senses:
    """Whether a model sees pictures and hears sounds."""

    sees: bool = False
    hears: bool = False

    @property
    def modalities(self) -> list[Modality]:
        media: dict[Modality, bool] = {"image": self.sees, "audio": self.hears}
        return ["text", *(kind for kind, is_read in media.items() if is_read)]

    @property
    def described(self) -> str:
        """What the model reads, as the end of a sentence."""
        words = {(False, False): "only text", (True, False): "text and pictures", (False, True): "text and sounds"}
        return words.get((self.sees, self.hears), "text, pictures and sounds")


TEXT_ONLY = Senses()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """A valid model. `chat_template` is empty for a model without one.

    `recipe` is how it was made of another model, if it was; its template becomes the `chat_template`.

    `infill` are the tokens for filling in the middle, None for a model that cannot. `identity` is the same for all
    names of the file. With its `projector`, if it has one, it `sees` pictures or `hears` sounds.
    """

    chat_template: str
    bos_token: str
    eos_token: str
    n_ctx_train: int
    n_bytes: int
    infill: InfillTokens | None = None
    task: ModelTask = "text"
    recipe: Recipe = NO_RECIPE
    identity: FileIdentity = ()
    projector: FoundProjector = NOTHING_FOUND
    projectors: str = ""  # a stamp of the files that may be its projector

    @property
    def projector_path(self) -> str:
        """The file of its projector; empty without one."""
        return self.projector.path

    @property
    def sees(self) -> bool:
        return self.projector.sees

    @property
    def hears(self) -> bool:
        return self.projector.hears

    @property
    def recipe_n_ctx(self) -> int:
        """The context length of its recipe, 0 for a recipe without one."""
        wanted = self.recipe.parameters.get("num_ctx")
        return wanted if isinstance(wanted, int) else 0  # requests refuse a recipe with anything else


def read_model_file(path: Path, projector: str = "") -> ModelFile:
    """Read the header of the GGUF at `path`; `projector` is how to choose the one that belongs to it.

    Raises ModelFileError for a file without a text model, and for a chosen projector that does not belong to it.
    """
    projectors = projector_stamp(path)  # before reading: a change in between is detected next time
    header, recipe = validate_gguf(path), read_recipe(path)
    check_answers(header, needs_tokenizer=True)
    return ModelFile(
        chat_template=recipe.template or header.text("tokenizer.chat_template"),
        bos_token=_token(header, "tokenizer.ggml.bos_token_id"),
        eos_token=_token(header, "tokenizer.ggml.eos_token_id"),
        n_ctx_train=header.integer(f"{header.architecture}.context_length") or 0,
        n_bytes=header.file_bytes,
        infill=infill_tokens_of(header),
        task=_task(header),
        recipe=recipe,
        identity=identity_of(path),
        projector=choose_projector(header, projector),
        projectors=projectors,
    )


def is_current(path: Path, file: ModelFile) -> bool:
    """Return whether the model at `path` is still `file`, with the same files that may be its projector."""
    return identity_of(path) == file.identity and projector_stamp(path) == file.projectors


def _task(header: Header) -> ModelTask:
    """Return what the model was made for: those that pool the vectors of tokens write no text."""
    pooling = header.integer(f"{header.architecture}.pooling_type") or 0
    if pooling == _RANK:
        return "ranking"
    is_bidirectional = header.metadata.get(f"{header.architecture}.attention.causal") is False
    is_encoder = is_bidirectional or header.architecture in _WITH_ENCODER
    return "vectors" if pooling or is_encoder else "text"


def _token(header: Header, key: str) -> str:
    """Return the text of the token whose id is at `key`, empty for none or an invalid id."""
    token_id = header.integer(key)
    if token_id is None or "tokenizer.ggml.tokens" not in header.fields:
        return ""
    tokens = header.array("tokenizer.ggml.tokens")
    return str(tokens[token_id]) if 0 <= token_id < len(tokens) else ""


_TOKENS = "tokenizer.ggml.tokens"

# The metadata keys, the newer first, and the spellings in files without them (source: llama.cpp
# src/llama-vocab.cpp @ the version vendored in llama-cpp-python 0.3.36; mistral-common for [PREFIX] and [SUFFIX]).
_KEYS: Mapping[str, tuple[str, ...]] = {
    "prefix": ("fim_pre_token_id", "prefix_token_id"),
    "suffix": ("fim_suf_token_id", "suffix_token_id"),
    "middle": ("fim_mid_token_id", "middle_token_id"),
    "repository": ("fim_rep_token_id",),
    "separator": ("fim_sep_token_id",),
}
_SPELLINGS: Mapping[str, str] = {
    **dict.fromkeys(
        ("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>", "<|code_prefix|>"),
        "prefix",
    ),
    **dict.fromkeys(
        ("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>", "<|code_suffix|>"),
        "suffix",
    ),
    **dict.fromkeys(
        ("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>", "<|code_middle|>"),
        "middle",
    ),
    **dict.fromkeys(("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"), "repository"),
    "<|file_sep|>": "separator",
    "<|prefix|>": "prefix",
    "<|suffix|>": "suffix",
    "<|middle|>": "middle",
    "[PREFIX]": "prefix",
    "[SUFFIX]": "suffix",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class InfillTokens:
    """Ids of the tokens before the prefix, the suffix, and the text to be generated.

    A model without `middle` generates right after the prefix, which then comes last (`is_suffix_first`). `repository`
    and `separator` precede the names of a project and its files; `begin` is BOS, where the engine adds it.
    """

    prefix: int
    suffix: int
    middle: int | None = None
    repository: int | None = None
    separator: int | None = None
    begin: int | None = None

    @property
    def is_suffix_first(self) -> bool:
        return self.middle is None


def infill_tokens_of(header: Header) -> InfillTokens | None:
    """Return the tokens of the model of `header`, None if it has none."""
    if _TOKENS not in header.fields:
        return None
    ids = _ids_by_key(header) or _ids_by_spelling(header)
    if "prefix" not in ids or "suffix" not in ids:
        return None
    return InfillTokens(**ids, begin=header.integer("tokenizer.ggml.bos_token_id"))


def _ids_by_key(header: Header) -> dict[str, int]:
    """Return the ids in the metadata, ignoring those beyond the vocabulary."""
    n_tokens = header.array_ref(_TOKENS).count
    found = {
        name: [token for key in keys if (token := header.integer(f"tokenizer.ggml.{key}")) is not None]
        for name, keys in _KEYS.items()
    }
    return {name: tokens[0] for name, tokens in found.items() if tokens and 0 <= tokens[0] < n_tokens}


def _ids_by_spelling(header: Header) -> dict[str, int]:
    """Return the ids of the tokens with a known spelling, the first of each."""
    ids: dict[str, int] = {}
    for token, text in enumerate(header.array(_TOKENS)):
        if isinstance(text, str) and text in _SPELLINGS:
            ids.setdefault(_SPELLINGS[text], token)
    return ids


@dataclass(frozen=True, slots=True)
class Attachments:
    """Valid files: (path, name) of each adapter, (path, scale) of each control vector.

    `draft_path` is the path of the draft model, or empty.
    """

    lora: tuple[tuple[str, str], ...] = ()
    control_vectors: tuple[tuple[str, float], ...] = ()
    draft_path: str = ""


NOTHING_ATTACHED = Attachments()


def read_attachments(settings: Settings, model: Path) -> Attachments:
    """Return what `settings` attach to the valid GGUF `model`.

    Raises UsageError for an invalid scale, ModelFileError for an invalid file, UnknownModelError for a draft model that
    is not installed.
    """
    lora = tuple((str(path), name or path.stem) for path, name in map(_split, settings.lora))
    vectors = tuple((str(path), _scale(text)) for path, text in map(_split, settings.control_vector))
    for file, _ in lora:
        validate_adapter(Path(file), model)
    for file, _ in vectors:
        read_control_vector(Path(file), model)
    draft_path = ""
    if settings.draft not in ("", NO_DRAFT):
        draft_path = str(resolve(settings.draft, settings).path)
        validate_gguf(Path(draft_path))
    return Attachments(lora, vectors, draft_path)


def _split(text: str) -> tuple[Path, str]:
    """Return the absolute path and the text after its last `=`; a file name may contain one."""
    whole = absolute(text)
    before, _, after = text.rpartition("=")
    return (whole, "") if not before or whole.exists() else (absolute(before), after)


def _scale(text: str) -> float:
    try:
        scale = float(text or 1.0)
    except ValueError:
        scale = math.nan
    if not abs(scale) <= MAX_SCALE:  # false for NaN too
        cause = f"The scale {text!r} of a control vector is not a number up to {MAX_SCALE:g}."
        raise UsageError(cause, "Use FILE=0.8.")
    return scale
