"""The answer of `localllm run`, printed while it streams. Imported when the service is starting already."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import asdict, replace

import click

from app.chat.activity import FRAMES_PER_S, activity_of, spinner
from app.chat.backend import ConnectionState, LoadedModel
from app.chat.branches import Conversation
from app.chat.compaction import AutoCompaction
from app.chat.conversation import ChatSettings, MessageContent
from app.chat.events import Calling, Events, Failed, Paused, Reading
from app.chat.exchange import ask
from app.chat.repository import InMemoryChatRepository, OpenedChat
from app.chat.state import ChatState
from app.chat.tool_switches import RequestedTools
from app.cli.output.answer import AnswerPrinter, LoadingLine, as_json, calls_json, ending_note, source_lines, stats_line
from app.cli.output.format import print_json
from app.cli.prompts import AttachedFiles, confirm_load
from app.cli.resources import show_kept, show_notices
from app.client.launcher import load_model, open_engine
from app.client.service_process import StartedService
from app.common.terminal import printable
from app.settings.settings import Settings
from app.tools.lazy import LazyTools
from quantizer.system.errors import UserError

_SHOWN_AFTER_S = 0.3  # progress would only flicker before


async def print_answer(
    settings: Settings,
    chat_settings: ChatSettings,
    question: str,
    attached: AttachedFiles,
    requested: RequestedTools,
    shows_stats: bool,
    wants_json: bool,
    begun: StartedService | None,
) -> None:
    """Load the model, and print its answer to `question`, with the files `attached`, while it streams, or as one JSON
    object. `begun` is the service that was started for it. Raises what ends it."""
    tools = LazyTools(settings) if requested else None
    # As the service keeps any other client's prompts: the next `run` on the same document need not read it again.
    repository = InMemoryChatRepository(prompt_cache_key="" if requested else None)
    await repository.keep_files(attached.contents)
    asked = MessageContent(role="user", content=question, attachments=attached.attachments)
    printer = AnswerPrinter()
    printer.is_silent = wants_json
    async with open_engine(settings, keeps=True, begun=begun) as client:
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
            LoadedModel(client, ConnectionState.of_model(status)),
            tools=tools,
            compaction=lambda: AutoCompaction.of(settings) if requested else AutoCompaction(is_on=False),
            clean=str if wants_json else printable,  # JSON escapes what a terminal must not get
            keeps_file_texts=lambda: settings.draft_corpus,
        )
        try:
            if tools is not None:
                switched = await requested.applied(chat_settings.tools, tools)
                chat.conversation.settings = replace(chat_settings, tools=switched)
            showing = asyncio.create_task(_show_activity(chat, printer))
            try:
                await _print_events(ask(chat, asked, None), chat, printer)
            finally:
                showing.cancel()
                printer.busy.clear()
        finally:
            if tools is not None:
                await tools.close()
    entry, cost = chat.conversation.entries()[-1], chat.figures.cost
    assert cost is not None, "an answer that raises nothing is whole"
    if wants_json:
        answer = as_json(status.id, entry.message.content, cost, entry.message.reasoning, attached.attachments)
        cited = {"sources": [asdict(source) for source in entry.sources]} if entry.sources else {}
        called = {"calls": list(calls_json(chat.conversation.branch))} if requested else {}
        print_json({**answer, **cited, **called})
    else:
        if requested:
            printer.end(ending_note(entry))
        else:
            click.echo()
        if entry.sources:
            printer.print_line(source_lines(entry.sources))
    if shows_stats:
        click.echo(stats_line(cost), err=True)
    show_kept(client, wants_json=wants_json)


async def _show_activity(chat: ChatState, printer: AnswerPrinter) -> None:
    """Show what the chat is at while nothing else is printed, where stderr is a terminal."""
    await asyncio.sleep(_SHOWN_AFTER_S)
    while True:
        now_s = chat.clock()
        activity = activity_of(chat, now_s)
        if activity is not None and not (printer.has_begun or printer.is_asking):
            printer.busy.put(activity.line(spinner(now_s)))
        await asyncio.sleep(1 / FRAMES_PER_S)


async def _print_events(events: Events, chat: ChatState, printer: AnswerPrinter) -> None:
    """Print what happens until the answer is whole. Raises the UserError that ends it before."""
    failure: UserError | None = None
    try:
        async with aclosing(events):
            async for event in events:
                if isinstance(event, Failed | Paused):
                    failure = event.error  # the last word, unless a summary makes room and it is answered again
                elif isinstance(event, Reading | Calling):
                    failure = None
                await printer.draw(event, chat.approvals)
    except BaseException:
        printer.interrupt()  # what follows, as an error, begins a line
        raise
    if failure is not None:
        printer.interrupt()
        raise failure
