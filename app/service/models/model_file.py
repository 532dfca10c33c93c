"""Model files as requests need them before an engine loads them, what the settings attach, and all names there are.

Reads headers only: chat template, fill-in-the-middle tokens, whether a model takes pictures or sounds. Validates LoRA
adapters (FILE[=NAME]), control vectors (FILE[=SCALE]) and the draft model. The catalog has every model that a request
may name, loaded or not, with facts that are cached until a file changes; `is_placeholder` recognises names that mean no
local model: clients send `gpt-4o` or `default` because they have to send something.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

from app.library.external import adapters_of, recipe_of, recipe_stamp, weights_of
from app.library.local.model_files import FileIdentity, ModelRef, identity_of
from app.library.local.model_sampling import read_model_sampling, sampling_stamp
from app.library.local.model_task import ModelTask, task_of
from app.library.local.projectors import (
    NOTHING_FOUND,
    FoundProjector,
    choose_projector,
    general_choice,
    projector_stamp,
)
from app.library.local.recipe import NO_RECIPE, Recipe
from app.library.local.resolve import BUILT_IN, absolute, available, find_by_name, resolve
from app.protocol.sampling import OUR_SAMPLING, ModelSampling
from app.service.threads import in_thread
from app.settings.settings import COPY_DRAFT, NO_DRAFT, Settings
from quantizer.figures import format_number
from quantizer.gguf.adapters import read_control_vector, validate_adapter
from quantizer.gguf.gguf_reader import ArrayRef, ModelFileError, Scalar
from quantizer.gguf.header import Header
from quantizer.gguf.model_info import ModelInfo, read_model_info
from quantizer.gguf.validation import check_answers, validate_gguf
from quantizer.system.errors import UsageError
from quantizer.system.files import explained

Modality: TypeAlias = Literal["text", "image", "audio"]
Purpose: TypeAlias = ModelTask | Literal["sounds"]  # what a request wants a model for

MAX_SCALE = 100.0
_TEMPLATE, _TOKENS = "tokenizer.chat_template", "tokenizer.ggml.tokens"
_TOOL_TEMPLATE = f"{_TEMPLATE}.tool_use"  # of Command R+, Hermes 2 Pro and others that have several


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


def is_for(purpose: Purpose, task: ModelTask, senses: Senses) -> bool:
    """Return whether a model that was made for `task` and has `senses` serves a `purpose`."""
    return senses.hears if purpose == "sounds" else task == purpose


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """A valid model. `chat_template` is that of its `recipe` if it was made of another model, or its own, or empty;
    `tool_template` its own for chats with tools, or empty.

    `infill` are the tokens for filling in the middle, None for a model that cannot. `sampling` is how it is sampled
    where a request does not say it. `identity` is the same for all names of the file. With its `projector`, if it has
    one, it `sees` pictures or `hears` sounds.
    """

    chat_template: str
    bos_token: str
    eos_token: str
    n_ctx_train: int
    n_bytes: int
    infill: InfillTokens | None = None
    task: ModelTask = "text"
    sampling: ModelSampling = OUR_SAMPLING
    recipe: Recipe = NO_RECIPE
    identity: FileIdentity = ()
    projector: FoundProjector = NOTHING_FOUND
    # What differs once another file may be its projector, Ollama has other weights for it, or its recipe or the
    # sampling beside it changed.
    projectors: str = ""
    weights: tuple[str, ...] = ()
    recipe_stamp: str = ""
    sampling_stamp: str = ""
    tool_template: str = ""

    @property
    def projector_path(self) -> str:
        return self.projector.path

    @property
    def sees(self) -> bool:
        return self.projector.sees

    @property
    def hears(self) -> bool:
        return self.projector.hears

    def for_chat(self, *, has_tools: bool) -> ModelFile:
        """Return the file as a chat with tools or without has it: with the template for that as its `chat_template`
        (source of the choice: transformers' `get_chat_template`)."""
        return replace(self, chat_template=self.tool_template) if has_tools and self.tool_template else self

    @property
    def recipe_n_ctx(self) -> int:
        """The context length of its recipe, 0 for a recipe without one."""
        wanted = self.recipe.parameters.get("num_ctx")
        return wanted if isinstance(wanted, int) else 0  # requests refuse a recipe with anything else


def read_model_file(path: Path, projector: str = "", manifest: Path | None = None) -> ModelFile:
    """Read the header of the GGUF at `path`; `projector` is how to choose the one that belongs to it, `manifest` is
    that of a model of Ollama. Raises ModelFileError for a file without a text model, and for a chosen projector that
    does not belong to it."""
    ref = ModelRef(path.stem, path, manifest=manifest)
    # Before reading: a change in between is detected next time.
    projectors, weights, stamp = projector_stamp(path), weights_of(ref), recipe_stamp(ref)
    beside = sampling_stamp(path)
    header, recipe = validate_gguf(path), recipe_of(ref)
    check_answers(header, needs_tokenizer=True)
    return ModelFile(
        chat_template=recipe.template or header.text(_TEMPLATE),
        tool_template="" if recipe.template else header.text(_TOOL_TEMPLATE),
        bos_token=_token(header, "tokenizer.ggml.bos_token_id"),
        eos_token=_token(header, "tokenizer.ggml.eos_token_id"),
        n_ctx_train=header.integer(f"{header.architecture}.context_length") or 0,
        n_bytes=header.file_bytes,
        infill=infill_tokens_of(header),
        task=task_of(header.architecture, header.metadata),
        sampling=read_model_sampling(header, recipe),
        recipe=recipe,
        identity=identity_of(path),
        projector=choose_projector(header, projector),
        projectors=projectors,
        weights=weights,
        recipe_stamp=stamp,
        sampling_stamp=beside,
    )


def is_current(ref: ModelRef, file: ModelFile) -> bool:
    """Return whether all that `file` was read from is unchanged, but for its recipe."""
    return (identity_of(ref.path), projector_stamp(ref.path), weights_of(ref)) == (
        file.identity,
        file.projectors,
        file.weights,
    )


def with_current_recipe(ref: ModelRef, file: ModelFile) -> ModelFile:
    """Return `file`, with its recipe and its sampling read again if these changed; a removed manifest changes nothing.
    Raises ModelFileError for a recipe that cannot be read."""
    stamp, beside = recipe_stamp(ref), sampling_stamp(ref.path)
    if (stamp, beside) == (file.recipe_stamp, file.sampling_stamp) or (ref.manifest and not stamp):
        return file
    header, recipe = validate_gguf(ref.path), recipe_of(ref)
    return replace(
        file,
        recipe=recipe,
        chat_template=recipe.template or header.text(_TEMPLATE),
        sampling=read_model_sampling(header, recipe),
        recipe_stamp=stamp,
        sampling_stamp=beside,
    )


def _token(header: Header, key: str) -> str:
    token_id = header.integer(key)
    if token_id is None or _TOKENS not in header.fields:
        return ""
    tokens = header.array(_TOKENS)
    return str(tokens[token_id]) if 0 <= token_id < len(tokens) else ""


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
    **dict.fromkeys(("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>"), "prefix"),
    **dict.fromkeys(("<|code_prefix|>", "<|prefix|>", "[PREFIX]"), "prefix"),
    **dict.fromkeys(("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>"), "suffix"),
    **dict.fromkeys(("<|code_suffix|>", "<|suffix|>", "[SUFFIX]"), "suffix"),
    **dict.fromkeys(("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>"), "middle"),
    **dict.fromkeys(("<|code_middle|>", "<|middle|>"), "middle"),
    **dict.fromkeys(("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"), "repository"),
    "<|file_sep|>": "separator",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class InfillTokens:
    """Ids of the tokens before the prefix, the suffix, and the text to be generated. A model without `middle` generates
    right after the prefix, which then comes last (`is_suffix_first`). `repository` and `separator` precede the names of
    a project and its files; `begin` is BOS, where the engine adds it."""

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
    ids: dict[str, int] = {}
    for name, keys in _KEYS.items():
        found = [token for key in keys if (token := header.integer(f"tokenizer.ggml.{key}")) is not None]
        if found and 0 <= found[0] < header.array_ref(_TOKENS).count:  # some files name ids beyond the vocabulary
            ids[name] = found[0]
    if not ids:  # older files: by a known spelling, the first of each
        for token, text in enumerate(header.array(_TOKENS)):
            if isinstance(text, str) and text in _SPELLINGS:
                ids.setdefault(_SPELLINGS[text], token)
    if "prefix" not in ids or "suffix" not in ids:
        return None
    return InfillTokens(**ids, begin=header.integer("tokenizer.ggml.bos_token_id"))


@dataclass(frozen=True, slots=True)
class Attachments:
    """Valid files: (path, name) of each adapter, (path, scale) of each control vector; the draft model's or "". With
    `uses_copy` a low-bit copy of the model drafts."""

    lora: tuple[tuple[str, str], ...] = ()
    control_vectors: tuple[tuple[str, float], ...] = ()
    draft_path: str = ""
    uses_copy: bool = False


NOTHING_ATTACHED = Attachments()


def own_attachments(ref: ModelRef) -> Attachments:
    """Return the adapters that a model of Ollama has beside its weights. Raises ModelFileError for an invalid one."""
    adapters = adapters_of(ref)
    for adapter in adapters:
        validate_adapter(adapter, ref.path)
    return Attachments(lora=tuple((str(path), f"adapter-{number}") for number, path in enumerate(adapters, 1)))


def read_attachments(settings: Settings, ref: ModelRef) -> Attachments:
    """Return what `settings` attach to the valid model at `ref`, after the adapters that it has in Ollama. Raises
    UsageError for an invalid scale, ModelFileError for an invalid file, UnknownModelError for a draft model that is not
    installed."""
    model, lora = ref.path, tuple((str(path), name or path.stem) for path, name in map(_split, settings.lora))
    vectors = tuple((str(path), _scale(text)) for path, text in map(_split, settings.control_vector))
    for file, _ in lora:
        validate_adapter(Path(file), model)
    for file, _ in vectors:
        read_control_vector(Path(file), model)
    draft_path = ""
    if settings.draft not in ("", NO_DRAFT, COPY_DRAFT):
        draft_path = str(resolve(settings.draft, settings).path)
        validate_gguf(Path(draft_path))
    return Attachments((*own_attachments(ref).lora, *lora), vectors, draft_path, settings.draft == COPY_DRAFT)


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
        cause = f"The scale {text!r} of a control vector is not a number up to {format_number(MAX_SCALE)}."
        raise UsageError(cause, "Use FILE=0.8.")
    return scale


@dataclass(frozen=True, slots=True)
class FileFacts:
    """A valid file: its model info, its metadata without lists, NaN and the chat template, and that template.
    `identity` are 64 hexadecimal digits that change with the file's name, size or time; `sampling` is that of the model
    without a recipe."""

    info: ModelInfo
    metadata: Mapping[str, Scalar | str]
    chat_template: str
    modified_s: float
    identity: str
    senses: Senses = TEXT_ONLY
    sampling: ModelSampling = OUR_SAMPLING

    @property
    def only_embeds(self) -> bool:
        return self.metadata.get(f"{self.info.architecture}.attention.causal") is False

    @property
    def task(self) -> ModelTask:
        return task_of(self.info.architecture, self.metadata)


def read_facts(path: Path, projector: str = "") -> FileFacts:
    """Return the facts of the GGUF at `path`; `projector` is as in `read_model_file`. Raises ModelFileError."""
    stat = path.stat()
    header = validate_gguf(path)
    found = choose_projector(header, projector)
    metadata: dict[str, Scalar | str] = {}
    for key, value in header.metadata.items():
        is_sayable = not isinstance(value, float) or math.isfinite(value)  # JSON has no NaN
        if not isinstance(value, ArrayRef) and key != _TEMPLATE and is_sayable:
            metadata[key] = value
    return FileFacts(
        info=read_model_info(header),
        metadata=metadata,
        chat_template=header.text(_TEMPLATE),
        modified_s=stat.st_mtime,
        identity=hashlib.sha256(repr((header.path.name, stat.st_size, stat.st_mtime_ns)).encode()).hexdigest(),
        senses=Senses(found.sees, found.hears),
        sampling=read_model_sampling(header, NO_RECIPE),
    )


class ModelCatalog:
    """The models in the folder of `settings`, after those of `opened`, which may be anywhere."""

    def __init__(self, settings: Settings, opened: Callable[[], Sequence[ModelRef]]) -> None:
        self._settings = settings
        self._opened = opened
        self._facts: dict[Path, tuple[tuple[int, int, str, str], FileFacts]] = {}

    async def list_models(self) -> tuple[ModelRef, ...]:
        """Return every model that a request may name: the opened ones first, then the installed ones."""
        opened = self._opened()
        paths = {ref.path for ref in opened}
        installed = await asyncio.to_thread(available, self._settings)
        return (*opened, *(ref for ref in installed if ref.path not in paths))

    async def find(self, name: str) -> ModelRef:
        return find_by_name(name, await self.list_models())

    async def resolve(self, name: str) -> ModelRef:
        return await asyncio.to_thread(resolve, name, self._settings)

    async def installed_for(self, purpose: Purpose) -> list[ModelRef]:
        """Return the models in the library that serve `purpose`, loaded or not, without the built-in one."""
        installed = await asyncio.to_thread(available, self._settings)
        described = await self.with_facts([ref for ref in installed if ref.place != BUILT_IN])
        return [ref for ref, facts in described if is_for(purpose, facts.task, facts.senses)]

    async def list_with_facts(self) -> list[tuple[ModelRef, FileFacts]]:
        return await self.with_facts(await self.list_models())

    async def with_facts(self, refs: Sequence[ModelRef]) -> list[tuple[ModelRef, FileFacts]]:
        """Return `refs` with their facts; skip invalid and missing files."""
        found = await asyncio.gather(*(self._facts_or_none(ref) for ref in refs))
        return [(ref, facts) for ref, facts in zip(refs, found, strict=True) if facts]

    @in_thread
    def facts(self, ref: ModelRef) -> FileFacts:
        """Return the facts in the file of `ref`, read again when it or its projector changed. Raises ModelFileError."""
        with explained(f"{ref.path.name} cannot be read", "Name another model.", ModelFileError):
            stat = ref.path.stat()
        version = (stat.st_size, stat.st_mtime_ns, projector_stamp(ref.path), sampling_stamp(ref.path))
        cached = self._facts.get(ref.path)
        if cached is None or cached[0] != version:
            cached = self._facts[ref.path] = (version, read_facts(ref.path, general_choice(self._settings.projector)))
        return cached[1]

    async def _facts_or_none(self, ref: ModelRef) -> FileFacts | None:
        with contextlib.suppress(ModelFileError):
            return await self.facts(ref)
        return None


# What routers and clients put before a model's name (source: the providers of LiteLLM and OpenRouter).
_PROVIDERS = re.compile(
    r"(?:anthropic|azure|custom_openai|default|deepseek|google|gemini|hosted_vllm|litellm_proxy|llamacpp|llama_cpp|lm_studio"
    r"|lmstudio|local|localllm|mistral|models|ollama|ollama_chat|openai|openai_like|openrouter|qwen|vllm|x-ai|xai)/"
)
# Hosted models, which nobody can have as a file (source: the providers' lists of models).
_HOSTED = re.compile(
    r"gpt-\d.*"  # not gpt-oss, gpt-j, gpt-neox
    r"|(?:chatgpt|codex|text-davinci|text-curie|text-babbage|text-ada|text-embedding|davinci|babbage|o\d)(?:-.*)?"
    r"|whisper-.*|tts-1(?:-.*)?|claude(?:-.*)?|(?:claude-)?(?:sonnet|opus|haiku)(?:\[1m\]|-[\d.-]+|-latest)?"
    r"|gemini-.*|grok-.*|sonar(?:-.*)?|deepseek-(?:chat|reasoner)|moonshot-v1-.*|voyage-.*"
    r"|qwen[\d.]*(?:-coder|-vl|-omni)?-(?:max|plus|turbo|flash|long)(?:-.*)?"
    r"|(?:mistral|ministral|codestral|devstral|magistral|pixtral|kimi)-(?:.+-)?latest|mistral-(?:tiny|small|medium|large|embed)"
)
# What a client offers before anybody has chosen: a word alone, or several as in local-model, llama-server, my-model.
_ALONE = re.compile(
    r"(?:ai|any|auto|current|custom|default|demo|dummy|empty|example|fake|foo|llamacpp|llamafile|llm|lm|lmstudio|loaded"
    r"|local|localhost|localllm|main|model|none|null|ollama|openai|placeholder|server|test|undefined|vllm|whatever)\d{0,2}"
)
_WORD = (
    r"(?:a|ai|any|api|assistant|auto|bot|chat|coder|compatible|completion|cpp|current|custom|default|demo|dummy|empty"
    r"|example|fake|here|llama|llm|lm|loaded|local|localllm|main|model|my|name|openai|placeholder|server|some|studio"
    r"|test|text|the|vision|whatever|your|\d{1,2})"
)
_WORDS = re.compile(rf"{_WORD}(?:[-_. ]{_WORD})+")
_SUFFIX = re.compile(r":(?:latest|free|thinking|nitro|online)$")
_MAX_CHARACTERS = 100


def is_placeholder(name: str) -> bool:
    """Return whether `name` is of a hosted model, or says as little as "default": no local model can be meant by it. A
    name that could be of a local model, `llama3.2`, `qwen3:8b`, `org/repo`, is none, and neither is one that people
    give to theirs, such as `mario`."""
    rest = _SUFFIX.sub("", name.strip().lower()[:_MAX_CHARACTERS])
    while provider := _PROVIDERS.match(rest):
        rest = rest[provider.end() :]
    return any(pattern.fullmatch(rest) for pattern in (_HOSTED, _ALONE, _WORDS))
