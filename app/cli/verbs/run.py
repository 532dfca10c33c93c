"""`localllm run`: a prompt and its answer, or an unsaved chat."""

from __future__ import annotations

import asyncio
import sys
from contextlib import aclosing

import click

from app.chat.conversation import ChatSettings
from app.chat.sampling_options import validate_options
from app.cli.confirm import confirm_load
from app.cli.options import complete_model, generation_options, options, resolve_settings
from app.cli.output.answer import AnswerPrinter, LoadingLine, as_json, stats_line
from app.cli.output.format import print_json
from app.cli.prompts import combined, piped_text
from app.cli.user_interface import ChatOptions, current_interface
from app.client.launcher import load_model, open_engine
from app.protocol.chat import Completed, GenerationOptions, Message
from app.settings.settings import Settings
from quantizer.errors import UsageError

__all__ = ["run"]


@click.command(epilog="Example: localllm run guide 'How do I quantize a model?'")
@click.argument("model", required=False, shell_complete=complete_model)
@click.argument("prompt", required=False)
@click.option("-m", "--model", "model_option", help="The same as MODEL.", shell_complete=complete_model)
@click.option("-p", "--prompt", "prompt_option", help="The same as PROMPT, for the default model.")
@generation_options
@options("wants_json")
def run(
    model: str | None,
    prompt: str | None,
    model_option: str | None,
    prompt_option: str | None,
    system: str | None,
    max_tokens: int | None,
    temperature: float | None,
    seed: int | None,
    stats: bool,
    wants_json: bool,
    assume_yes: bool,
    **flags: object,
) -> None:
    """Run MODEL (guide, a path to a GGUF, or a name in the library) on a prompt and print its answer.

    The first argument is always the model. Piped text follows PROMPT, or is the prompt. With neither, a chat begins at
    the terminal that is not saved; `localllm chat --inline` saves it.
    """
    chosen = _one_of(model, model_option, "MODEL")
    _refuse_prompt_as_model(chosen, prompt or prompt_option)
    settings = resolve_settings(chosen, flags, assume_yes=assume_yes)
    interface = current_interface()
    question = combined(_one_of(prompt, prompt_option, "PROMPT"), piped_text())
    if question:
        messages = [Message("system", system)] if system else []
        messages.append(Message("user", question))
        sampling = GenerationOptions(max_tokens=max_tokens, temperature=temperature, seed=seed)
        asyncio.run(_print_answer(settings, messages, sampling, shows_stats=stats, wants_json=wants_json))
    elif sys.stdin is not None and sys.stdin.isatty() and not wants_json and interface:
        given = validate_options({"max_tokens": max_tokens, "temperature": temperature, "seed": seed})
        chat = ChatSettings(system=system or "", options=given)
        interface.run_chat(ChatOptions(settings=settings, chat=chat, shows_stats=stats))
    else:
        raise UsageError("There is no prompt.", "Give one with -p, or pipe text in.")


async def _print_answer(
    settings: Settings, messages: list[Message], sampling: GenerationOptions, *, shows_stats: bool, wants_json: bool
) -> None:
    """Load the model, and print its answer to `messages` while it streams, or as one JSON object."""
    text = reasoning = ""
    completed, show = None, AnswerPrinter()
    async with open_engine(settings) as client:
        status = await load_model(
            client,
            settings.model,
            LoadingLine().show,
            when_unfit=settings.when_unfit,
            confirm_load=confirm_load,
        )
        if status.n_ctx and settings.ctx not in (0, status.n_ctx):
            note = f"Note: {status.id} is loaded with {status.n_ctx} tokens of context, not {settings.ctx}."
            click.echo(note, err=True)
        async with aclosing(client.chat(messages, status.id, sampling)) as events:
            async for event in events:
                if isinstance(event, Completed):
                    completed = event
                elif wants_json:
                    text, reasoning = text + event.text, reasoning + event.reasoning
                else:
                    show(event)
    assert completed is not None, "an answer that raises nothing is whole"
    if wants_json:
        print_json(as_json(status.id, text, completed, reasoning))
    else:
        click.echo()
    if shows_stats:
        click.echo(stats_line(completed), err=True)


def _one_of(argument: str | None, option: str | None, name: str) -> str | None:
    if argument and option:
        raise UsageError(f"{name} is set twice.", "Give it as an argument or as an option.")
    return argument or option


def _refuse_prompt_as_model(model: str | None, prompt: str | None) -> None:
    """Raise UsageError for a prompt in place of the model: no model's name has line breaks or a question mark."""
    if model and not prompt and ("\n" in model or "?" in model):
        raise UsageError(f"{model!r} is not a model.", "Give a prompt with -p, or after a model.")
