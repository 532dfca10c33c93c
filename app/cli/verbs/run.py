"""`localllm run`: a prompt, with files, and its answer, or an unsaved chat."""

from __future__ import annotations

import asyncio
import sys
from contextlib import nullcontext
from pathlib import Path

import click

from app.cli.options import AnswerOptions, ToolOptions, chat_options, complete_file, complete_model, options
from app.cli.prompts import ChatOptions, combined, current_interface, exit_on_signals, piped_input, read_attached
from app.cli.resources import resolve_settings
from quantizer.system.errors import UsageError


@click.command(epilog="Example: localllm run guide 'How do I quantize a model?'")
@click.argument("model", required=False, shell_complete=complete_model)
@click.argument("prompt", required=False)
@click.argument("files", nargs=-1, shell_complete=complete_file)
@click.option("-m", "--model", "model_option", help="The same as MODEL.", shell_complete=complete_model)
@click.option("-p", "--prompt", "prompt_option", help="The same as PROMPT, for the default model.")
@click.option("--search-files", is_flag=True, help="Send the passages of FILES that fit PROMPT, not the whole texts.")
@chat_options
@options("wants_json")
def run(
    answering: AnswerOptions,
    tools: ToolOptions,
    model: str | None,
    prompt: str | None,
    files: tuple[str, ...],
    model_option: str | None,
    prompt_option: str | None,
    search_files: bool,
    stats: bool,
    wants_json: bool,
    assume_yes: bool,
    **flags: object,
) -> None:
    """Run MODEL (guide, a path to a GGUF, or a name in the library) on a prompt and print its answer.

    The first argument is always the model. Piped text follows PROMPT, or is the prompt. With neither, a chat begins at
    the terminal that is not saved; `localllm chat --inline` saves it.

    FILES are attached: texts, PDFs (pages with paper.pdf#3-5, as pictures with paper.pdf#3-5,pictures), DOCX, HTML,
    CSV, notebooks, and for models that read them pictures and sounds. A piped picture, sound or PDF is attached too. A
    text that is too long for the context can be searched with --search-files.

    With --tools the model may read and write files, run commands and more. You are asked at the terminal before each
    call that changes or runs something, unless --allow, --allow-command or --allow-command-prefix names it; calls are
    reported on stderr.
    """
    if prompt_option is not None and prompt is not None:
        files = (prompt, *files)  # -p is the prompt, what follows the model are files
        prompt = None
    if model and model_option:
        raise UsageError("MODEL is set twice.", "Give it as an argument or as an option.")
    chosen = model or model_option
    # no model's name has line breaks or a question mark
    if chosen and not (prompt or prompt_option) and ("\n" in chosen or "?" in chosen):
        raise UsageError(f"{chosen!r} is not a model.", "Give a prompt with -p, or after a model.")
    if prompt and not files and "\n" not in prompt and Path(prompt).suffix and _is_file(prompt):
        raise UsageError(f"{prompt} is a file, not a prompt.", "Give a question before it, or the prompt with -p.")
    settings = resolve_settings(chosen, flags, assume_yes=assume_yes)
    interface = current_interface()
    piped = piped_input()
    question = combined(prompt or prompt_option, piped if isinstance(piped, str) else "")
    attached = read_attached(files, piped if isinstance(piped, bytes) else b"", is_searched=search_files)
    requested = tools.requested()
    if question:
        chat = answering.chat_settings()
        from app.client.service_process import begin_service

        begun = begin_service(settings)  # before the imports of what an answer needs, which take as long as its own
        from app.cli.answering import print_answer

        with exit_on_signals() if requested else nullcontext():
            asyncio.run(print_answer(settings, chat, question, attached, requested, stats, wants_json, begun))
    elif attached.attachments:
        raise UsageError(
            "There is no question about the files.", "Give one before them: localllm run MODEL PROMPT FILE."
        )
    elif sys.stdin is not None and sys.stdin.isatty() and not wants_json and interface:
        chat = answering.chat_settings()
        interface.run_chat(ChatOptions(settings=settings, chat=chat, shows_stats=stats, tools=requested))
    else:
        raise UsageError("There is no prompt.", "Give one with -p, or pipe text in.")


def _is_file(name: str) -> bool:
    try:
        return Path(name).is_file()
    except (OSError, ValueError):  # too long for a name, or a character that none has
        return False
