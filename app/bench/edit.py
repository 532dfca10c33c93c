"""The edit benchmark: answers that repeat much, some or nothing of their prompt.

With random weights nothing would ever be repeated, so a grammar of token ids forces the answer token by token. What a
draft saves and what verifying it costs are then as real as with a trained model. Knows nothing of how drafts are made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from app.bench.client import Answer, Client
from app.bench.prose import Prose
from quantizer.errors import ServiceError

__all__ = ["TASKS", "EditTask", "force"]

_N_SENTENCES = 24
_N_TOKENS = 256


@dataclass(frozen=True, slots=True)
class EditTask:
    """What is asked for and what the answer will be."""

    prompt: str
    answer: str


def rename(prose: Prose) -> EditTask:
    """A name that stands in every sentence becomes another one."""
    old, new = prose.choice(), prose.choice()
    sentences = [prose.sentence(extra=(old,)) for _ in range(_N_SENTENCES)]
    words = [word for sentence in sentences for word in sentence]
    renamed = (f" {new}{word[len(old) + 1 :]}" if word.strip(" .") == old else word for word in words)
    return _task(f"Write {new} for {old} in this text.", words, renamed)


def copy(prose: Prose) -> EditTask:
    """The text again, as it is."""
    words = [word for _ in range(_N_SENTENCES) for word in prose.sentence()]
    return _task("Repeat this text.", words, words)


def novel(prose: Prose) -> EditTask:
    """Other words that only happen to be of the same language."""
    words = [word for _ in range(_N_SENTENCES) for word in prose.sentence()]
    others = [word for _ in range(_N_SENTENCES) for word in prose.sentence()]
    return _task("Write something else than this text.", words, others)


def _task(instruction: str, words: Iterable[str], answer: Iterable[str]) -> EditTask:
    return EditTask(f"{instruction}\n\nText:\n{''.join(words)}\n\nResult:\n", "".join(answer))


TASKS: dict[str, Callable[[Prose], EditTask]] = {"rename": rename, "copy": copy, "novel": novel}


async def force(client: Client, task: EditTask) -> Answer:
    """Let the server write the first 256 tokens of the task's answer. Raises ServiceError when it writes others."""
    tokens = (await client.tokenize(task.answer))[:_N_TOKENS]
    grammar = "root ::= " + " ".join(f"<[{token}]>" for token in tokens)
    answer = await client.complete(task.prompt, len(tokens), temperature=0.0, grammar=grammar)
    if answer.n_output != len(tokens) or not task.answer.startswith(answer.text.rstrip("\N{REPLACEMENT CHARACTER}")):
        cause = f"The server left the grammar: {answer.n_output} tokens, {answer.text[:80]!r} …"
        raise ServiceError(cause, "Take one that knows grammars of token ids.")
    return answer
