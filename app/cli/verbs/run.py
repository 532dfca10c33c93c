"""`localllm run`: a prompt, with files, and its answer, or an unsaved chat."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from contextlib import aclosing, nullcontext
from dataclasses import replace
from pathlib import Path

import click

from app.chat.backend import ConnectionState, LoadedModel
from app.chat.branches import Conversation
from app.chat.compaction import AutoCompaction
from app.chat.conversation import ChatSettings, MessageContent
from app.chat.events import Calling, Events, Failed, Paused, Reading
from app.chat.exchange import ask
from app.chat.repository import InMemoryChatRepository, OpenedChat
from app.chat.state import ChatState
from app.chat.tool_switches import RequestedTools
from app.cli.options import AnswerOptions, ToolOptions, chat_options, complete_file, complete_model, options
from app.cli.output.answer import AnswerPrinter, LoadingLine, as_json, calls_json, ending_note, stats_line
from app.cli.output.format import print_json
from app.cli.prompts import (
    ChatOptions,
    combined,
    confirm_load,
    current_interface,
    exit_on_signals,
    piped_input,
    read_attached,
)
from app.cli.resources import resolve_settings, show_kept, show_notices
from app.client.launcher import load_model, open_engine
from app.common.terminal import printable
from app.settings.settings import Settings
from app.tools.display import call_title
from app.tools.lazy import LazyTools
from quantizer.system.errors import UsageError, UserError


@click.command(epilog="Example: localllm run guide 'How do I quantize a model?'")
@click.argument("model", required=False, shell_complete=complete_model)
@click.argument("prompt", required=False)
@click.argument("files", nargs=-1, shell_complete=complete_file)
@click.option("-m", "--model", "model_option", help="The same as MODEL.", shell_complete=complete_model)
@click.option("-p", "--prompt", "prompt_option", help="The same as PROMPT, for the default model.")
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
    stats: bool,
    wants_json: bool,
    assume_yes: bool,
    **flags: object,
) -> None:
    """Run MODEL (guide, a path to a GGUF, or a name in the library) on a prompt and print its answer.

    The first argument is always the model. Piped text follows PROMPT, or is the prompt. With neither, a chat begins at
    the terminal that is not saved; `localllm chat --inline` saves it.

    FILES are attached: texts, PDFs (pages with paper.pdf#3-5, as pictures with paper.pdf#3-5,pictures), DOCX, HTML,
    CSV, notebooks, and for models that read them pictures and sounds. A piped picture, sound or PDF is attached too.

    With --tools the model may read and write files, run commands and more. You are asked at the terminal before each
    call that changes or runs something, unless --allow or --allow-command names it; calls are reported on stderr.
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
    attached = read_attached(files, piped if isinstance(piped, bytes) else b"")
    requested = tools.requested()
    if question:
        asked = MessageContent(role="user", content=question, attachments=attached.attachments)
        chat = answering.chat_settings()
        with exit_on_signals() if requested else nullcontext():
            asyncio.run(_answer(settings, chat, asked, attached.contents, requested, stats, wants_json))
    elif attached.attachments:
        raise UsageError(
            "There is no question about the files.", "Give one before them: localllm run MODEL PROMPT FILE."
        )
    elif sys.stdin is not None and sys.stdin.isatty() and not wants_json and interface:
        chat = answering.chat_settings()
        interface.run_chat(ChatOptions(settings=settings, chat=chat, shows_stats=stats, tools=requested))
    else:
        raise UsageError("There is no prompt.", "Give one with -p, or pipe text in.")


async def _answer(
    settings: Settings,
    chat_settings: ChatSettings,
    question: MessageContent,
    contents: Mapping[str, bytes],
    requested: RequestedTools,
    shows_stats: bool,
    wants_json: bool,
) -> None:
    """Load the model, and print its answer while it streams, or as one JSON object. Raises what ends it."""
    tools = LazyTools(settings.data_dir) if requested else None
    # As the service keeps any other client's prompts: the next `run` on the same document need not read it again.
    repository = InMemoryChatRepository(prompt_cache_key="" if requested else None)
    await repository.keep_files(contents)
    printer = AnswerPrinter()
    printer.is_silent = wants_json
    async with open_engine(settings, keeps=True) as client:
        show_notices(client)
        status = await load_model(
            client, settings.model, LoadingLine().show, when_unfit=settings.when_unfit, confirm_load=confirm_load
        )
        if status.n_ctx and settings.ctx not in (0, status.n_ctx):
            printer.print_line(
                f"Note: {status.id} is loaded with {status.n_ctx} tokens of context, not {settings.ctx}."
            )
        chat = ChatState(
            OpenedChat(repository.new(), Conversation(chat_settings)),
            LoadedModel(client, ConnectionState(phase="ready", model=status.id, n_ctx=status.n_ctx)),
            tools=tools,
            compaction=lambda: AutoCompaction.of(settings) if requested else AutoCompaction(is_on=False),
            clean=str if wants_json else printable,  # JSON escapes what a terminal must not get
        )
        try:
            if tools is not None:
                switched = await requested.applied(chat_settings.tools, tools)
                chat.conversation.settings = replace(chat_settings, tools=switched)
            await _print_events(ask(chat, question, None), chat, printer, shows_progress=bool(requested))
        finally:
            if tools is not None:
                await tools.close()
    entry, cost = chat.conversation.entries()[-1], chat.figures.cost
    assert cost is not None, "an answer that raises nothing is whole"
    if wants_json:
        branch = chat.conversation.branch
        answer = as_json(status.id, entry.message.content, cost, entry.message.reasoning, question.attachments)
        print_json({**answer, "calls": list(calls_json(branch))} if requested else answer)
    elif requested:
        printer.end(ending_note(entry))
    else:
        click.echo()
    if shows_stats:
        click.echo(stats_line(cost), err=True)
    show_kept(client, wants_json=wants_json)


async def _print_events(events: Events, chat: ChatState, printer: AnswerPrinter, *, shows_progress: bool) -> None:
    """Print what happens until the answer is whole. Raises the UserError that ends it before."""
    failure: UserError | None = None
    try:
        async with aclosing(events):
            async for event in events:
                if isinstance(event, Failed | Paused):
                    failure = event.error  # the last word, unless a summary makes room and it is answered again
                elif isinstance(event, Reading | Calling):
                    failure = None
                    if shows_progress:
                        message = event.message
                        reading = f"{message.model} · processing the prompt"
                        printer.busy.put(f"{call_title(message.result)} …" if message.result else reading)
                await printer.draw(event, chat.approvals)
    except BaseException:
        printer.interrupt()  # what follows, as an error, begins a line
        raise
    if failure is not None:
        printer.interrupt()
        raise failure


def _is_file(name: str) -> bool:
    try:
        return Path(name).is_file()
    except (OSError, ValueError):  # too long for a name, or a character that none has
        return False
