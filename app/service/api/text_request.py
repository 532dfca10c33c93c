"""The request fields for text that OpenAI's dialect and llama-server share, and the engine request made of them.

Owns those fields and the forms of a prompt. Knows nothing of messages or answers.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from pydantic import StrictInt, StrictStr

from app.engine.request import Request
from app.service.api.fields import Body, TokenIds
from app.service.api.sampling import SamplingBody
from quantizer.errors import RequestError

__all__ = ["GenerationBody", "PromptField"]


class LoraScale(Body):
    """The scale of an adapter, given by name or by its number in the order of `--lora` (as llama-server does)."""

    id: StrictInt | None = None
    name: StrictStr | None = None
    scale: float

    def as_pair(self) -> tuple[int | str, float]:
        """Return the adapter and its scale. Raises RequestError unless it has either an id or a name."""
        name = self.id if self.name is None else self.name
        if name is None or (self.id is not None and self.name is not None):
            raise RequestError("An entry of lora needs an id or a name.", 'Use {"id": 0, "scale": 0.5}.')
        return name, self.scale


class GenerationBody(SamplingBody):
    """The fields but for the prompt; None means not given."""

    model: StrictStr | None = None
    stream: bool | None = None
    timings_per_token: bool | None = None
    ignore_eos: bool | None = None
    lora: list[LoraScale] | None = None
    context_shift: bool | None = None
    n_keep: int | None = None
    max_time: float | None = None
    t_max_predict_ms: int | None = None

    def request(self, prompt: str | tuple[int, ...] = "", *, add_special: bool = True) -> Request:
        """Return the engine's request for `prompt`. Raises RequestError for values out of range or unsupported."""
        limit = self._limit()
        return self.new_request(
            prompt,
            self._format_grammar(),
            None if limit == -1 else limit,
            ignore_eos=bool(self.ignore_eos),
            add_special=add_special,
            n_logprobs=self._n_logprobs(),
            lora=None if self.lora is None else tuple(item.as_pair() for item in self.lora),
            context_shift=self.context_shift,
            n_keep=self.n_keep or 0,
            max_time_s=self.max_time,
            max_predict_s=self._max_predict_s(),
        )

    @abstractmethod
    def _limit(self) -> int | None:
        """Return the maximum number of output tokens; -1 and None mean no limit."""

    @abstractmethod
    def _n_logprobs(self) -> int | None:
        """Return the number of alternatives to report for each token; every route has its own field for it."""

    @abstractmethod
    def _format_grammar(self) -> str:
        """Return the grammar of the requested output format, "" for none."""

    def _max_predict_s(self) -> float | None:
        """Return llama-server's time limit, where 0 and -1 mean none."""
        return None if self.t_max_predict_ms in (None, 0, -1) else self.t_max_predict_ms / 1000


class PromptField(Body):
    """A `prompt`: text or token ids, or a list of either."""

    prompt: StrictStr | list[StrictStr] | TokenIds | list[TokenIds]

    def prompts(self) -> tuple[str | tuple[int, ...], ...]:
        """Return all prompts; there may be none."""
        prompt: Any = self.prompt
        is_one = isinstance(prompt, str) or (prompt and isinstance(prompt[0], int))
        return tuple(item if isinstance(item, str) else tuple(item) for item in ([prompt] if is_one else prompt))

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
