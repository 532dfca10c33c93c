"""The models that a request may name, loaded or not, with facts from their files, cached until a file changes.

`is_placeholder` recognises names that mean no local model: clients send `gpt-4o` or `default` because they have to
send something.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.library.local.model_files import ModelRef
from app.library.local.projectors import choose_projector, general_choice, projector_stamp
from app.library.local.resolve import available, find_by_name, resolve
from app.service.models.model_file import TEXT_ONLY, Senses
from app.service.threads import in_thread
from app.settings.settings import Settings
from quantizer.gguf.gguf_reader import ArrayRef, ModelFileError, Scalar
from quantizer.gguf.model_info import ModelInfo, read_model_info
from quantizer.gguf.validation import validate_gguf
from quantizer.system.files import explained

_TEMPLATE = "tokenizer.chat_template"


@dataclass(frozen=True, slots=True)
class FileFacts:
    """A valid file: its model info, its metadata without lists and the chat template, and that template.

    `senses` are what the model reads besides text.

    `identity` are 64 hexadecimal digits that change with the file's name, size or time.
    """

    info: ModelInfo
    metadata: Mapping[str, Scalar | str]
    chat_template: str
    modified_s: float
    identity: str
    senses: Senses = TEXT_ONLY

    @property
    def only_embeds(self) -> bool:
        """Whether the model is an encoder, which cannot write."""
        return self.metadata.get(f"{self.info.architecture}.attention.causal") is False


def read_facts(path: Path, projector: str = "") -> FileFacts:
    """Return the facts of the GGUF at `path`; `projector` is how to choose the one that belongs to it.

    Raises ModelFileError for an invalid file.
    """
    stat = path.stat()
    header = validate_gguf(path)
    found = choose_projector(header, projector)
    metadata = {key: value for key, value in header.metadata.items() if not isinstance(value, ArrayRef)}
    return FileFacts(
        info=read_model_info(header),
        metadata={key: value for key, value in metadata.items() if key != _TEMPLATE},
        chat_template=header.text(_TEMPLATE),
        modified_s=stat.st_mtime,
        identity=hashlib.sha256(repr((header.path.name, stat.st_size, stat.st_mtime_ns)).encode()).hexdigest(),
        senses=Senses(found.sees, found.hears),
    )


class ModelCatalog:
    """The models in the folder of `settings`, after those of `opened`, which may be anywhere."""

    def __init__(self, settings: Settings, opened: Callable[[], Sequence[ModelRef]]) -> None:
        self._settings = settings
        self._opened = opened
        self._facts: dict[Path, tuple[tuple[int, int, str], FileFacts]] = {}

    async def list_models(self) -> tuple[ModelRef, ...]:
        """Return every model that a request may name: the opened ones first, then the installed ones."""
        opened = self._opened()
        paths = {ref.path for ref in opened}
        installed = await asyncio.to_thread(available, self._settings)
        return (*opened, *(ref for ref in installed if ref.path not in paths))

    async def find(self, name: str) -> ModelRef:
        """Return the model that clients call `name`. Raises UnknownModelError that lists the models."""
        return find_by_name(name, await self.list_models())

    async def resolve(self, name: str) -> ModelRef:
        """Return the model `name` (or path). Raises ModelFileError as `app.library.local.resolve` does."""
        return await asyncio.to_thread(resolve, name, self._settings)

    async def list_with_facts(self) -> list[tuple[ModelRef, FileFacts]]:
        """Return every model of `list_models` with its facts; skip invalid files."""
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
        version = (stat.st_size, stat.st_mtime_ns, projector_stamp(ref.path))
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
    r"|claude(?:-.*)?|(?:claude-)?(?:sonnet|opus|haiku)(?:\[1m\]|-[\d.-]+|-latest)?"
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
    """Return whether `name` is of a hosted model, or says as little as "default": no local model can be meant by it.

    A name that could be of a local model, `llama3.2`, `qwen3:8b`, `org/repo`, is none, and neither is one that people
    give to theirs, such as `mario`.
    """
    rest = _SUFFIX.sub("", name.strip().lower()[:_MAX_CHARACTERS])
    while provider := _PROVIDERS.match(rest):
        rest = rest[provider.end() :]
    return any(pattern.fullmatch(rest) for pattern in (_HOSTED, _ALONE, _WORDS))
