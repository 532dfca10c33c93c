"""The forms of a `prompt` in OpenAI's dialect and llama-server's: text, token ids, both mixed, and lists of these.

Owns these forms. A mixed prompt becomes token ids before requests are made of it, one with pictures a text.
Source: llama-server's README, `prompt` of /completion.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self, TypeAlias, TypeVar

from pydantic import StrictInt, StrictStr

from app.protocol.errors import RequestError
from app.service.api.fields import Body, TokenIds
from app.service.generation.media import Medium, PromptMedia
from app.service.models.served_model import ServedModel

MixedTokens: TypeAlias = list[StrictInt | StrictStr]
Prompt: TypeAlias = str | tuple[int | str, ...]


class PromptObject(Body):
    """A prompt as an object: a text with a marker (`media_marker` of /props) for each picture and sound beside it."""

    prompt_string: StrictStr
    multimodal_data: list[StrictStr] | None = None

    def text(self, media: PromptMedia, marker: str) -> str:
        """Return the prompt with the markers of `media` in place of `marker`.

        Raises RequestError for what the model cannot be given, and for another number of markers than of files.
        """
        files = [Medium.of(item) for item in self.multimodal_data or ()]
        if not files:
            return self.prompt_string
        for medium in files:
            if fault := media.fault(medium):
                raise fault
        first, *others = self.prompt_string.split(marker)
        if len(others) != len(files):
            cause = f"The prompt has {len(others)} media markers for {len(files)} files in multimodal_data."
            raise RequestError(cause, "Write the media_marker of /props where each of them stands.")
        return first + "".join(
            f"{media.part_of(medium).text}{text}" for medium, text in zip(files, others, strict=True)
        )


class PromptField(Body):
    """A `prompt`; a list with a number in it is one prompt, other lists are several."""

    prompt: (
        StrictStr
        | list[StrictStr]
        | TokenIds
        | list[TokenIds]
        | PromptObject
        | list[StrictInt | StrictStr | PromptObject | MixedTokens]
    )

    def with_markers(self, media: PromptMedia, marker: str) -> Self:
        """Return the body with texts in place of objects. Raises RequestError as `PromptObject.text`."""
        prompt: Any = self.prompt
        if isinstance(prompt, PromptObject):
            return self.model_copy(update={"prompt": prompt.text(media, marker)})
        if not isinstance(prompt, list):
            return self
        texts = [item.text(media, marker) if isinstance(item, PromptObject) else item for item in prompt]
        return self.model_copy(update={"prompt": texts})

    def prompts(self) -> tuple[str | tuple[int, ...], ...]:
        """Return all prompts, of which none is mixed or an object any more; there may be none."""
        return tuple(item if isinstance(item, str) else _ids(item) for item in self.mixed_prompts())

    def mixed_prompts(self) -> tuple[Prompt, ...]:
        """Return all prompts. Raises RequestError for a list of token ids and of prompts."""
        prompt: Any = self.prompt
        if not isinstance(prompt, list):
            return (_prompt(prompt),)
        if not any(isinstance(item, int) for item in prompt):
            return tuple(map(_prompt, prompt))
        if not all(isinstance(item, int | str) for item in prompt):
            raise RequestError("The prompt is a list of both token ids and prompts.", "Send one kind.")
        return (tuple(prompt),)

    def one_prompt(self) -> str | tuple[int, ...]:
        """Return the prompt. Raises RequestError unless there is exactly one."""
        prompts = self.prompts()
        if len(prompts) != 1:
            raise RequestError(f"There are {len(prompts)} prompts.", "Send one prompt a request.")
        return prompts[0]

    def text_prompt(self) -> str:
        """Return the prompt as text. Raises RequestError for token ids."""
        prompt = self.one_prompt()
        if not isinstance(prompt, str):
            raise RequestError("The prompt before a suffix is token ids.", "Give text.")
        return prompt


AnyPromptBody = TypeVar("AnyPromptBody", bound=PromptField)


async def with_token_ids(body: AnyPromptBody, model: ServedModel) -> AnyPromptBody:
    """Return `body` with the token ids of `model` in place of mixed prompts. Raises RequestError as `mixed_prompts`."""
    prompts = body.mixed_prompts()
    if not any(_is_mixed(prompt) for prompt in prompts):
        return body
    resolved = [await _tokenized(prompt, model) if _is_mixed(prompt) else prompt for prompt in prompts]
    return body.model_copy(update={"prompt": [item if isinstance(item, str) else list(item) for item in resolved]})


async def _tokenized(prompt: Prompt, model: ServedModel) -> tuple[int, ...]:
    """Return the ids of a mixed prompt; the model's first token is added where it begins with text."""
    tokens: list[int] = []
    with model.in_use() as engine:
        for index, part in enumerate(prompt):
            if isinstance(part, str):
                tokens += await engine.tokenize(part, add_special=index == 0, parse_special=True)
            else:
                tokens.append(part)
    return tuple(tokens)


def _prompt(item: str | list[int | str]) -> Prompt:
    return item if isinstance(item, str) else tuple(item)


def _is_mixed(prompt: Prompt) -> bool:
    return not isinstance(prompt, str) and any(isinstance(part, str) for part in prompt)


def _ids(prompt: Sequence[int | str]) -> tuple[int, ...]:
    ids = tuple(part for part in prompt if isinstance(part, int))
    assert len(ids) == len(prompt), "mixed prompts become token ids before requests are made of them"
    return ids
