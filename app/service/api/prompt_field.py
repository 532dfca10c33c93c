"""A prompt in the forms that completions take it in: text or token ids, or a list of one of them.

Knows nothing of what is done with it.
"""

from __future__ import annotations

from typing import Any

from app.service.api.bodies import Body, Text, TokenIds
from quantizer.errors import RequestError

__all__ = ["PromptField"]


class PromptField(Body):
    """`prompt` of a body."""

    prompt: Text | list[Text] | TokenIds | list[TokenIds]

    def prompts(self) -> tuple[str | tuple[int, ...], ...]:
        """Return all prompts, of which there may be none."""
        prompt: Any = self.prompt
        is_one = isinstance(prompt, str) or (prompt and isinstance(prompt[0], int))
        return tuple(item if isinstance(item, str) else tuple(item) for item in ([prompt] if is_one else prompt))

    def one_prompt(self) -> str | tuple[int, ...]:
        """Return the prompt. Raises RequestError where there is not just one."""
        prompts = self.prompts()
        if len(prompts) != 1:
            raise RequestError(f"{len(prompts)} prompts were given.", "Give one prompt a request.")
        return prompts[0]

    def text_prompt(self) -> str:
        """Return the prompt where it has to be text. Raises RequestError where it is not."""
        prompt = self.one_prompt()
        if not isinstance(prompt, str):
            raise RequestError("The prompt of a gap is token ids.", "Give text.")
        return prompt
