"""A chat in the scrollback from start to end: the prompt in the main thread, and an event loop in another, so that
answers and titles go on while the user types. Ctrl-C cancels what the main thread waits for.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from typing import Any, Generic, TypeVar

import click

from app.chat.compaction import AutoCompaction
from app.chat.repository import ChatRepository, InMemoryChatRepository, SqliteChatRepository
from app.chat.session import ANSWERED_ELSEWHERE
from app.cli.output.answer import LoadingLine
from app.cli.prompts import ChatOptions, confirm_load, exit_on_signals
from app.connection import ServiceConnection, local_service
from app.protocol.errors import UnfitError
from app.tools.lazy import LazyTools
from quantizer.system.errors import UserError
from tui.chat.session import ChatSession
from tui.inline.chat import SLASH_WORDS, InlineChat
from tui.inline.scrollback import LinePrompt, Scrollback, without_echo

_Result = TypeVar("_Result")

_POLL_S = 0.2  # on Windows Ctrl-C interrupts a lock only between waits


def run_inline(options: ChatOptions) -> None:
    """Run the chat until the user quits, or answer its one question. Raises UserError, and KeyboardInterrupt if nothing
    is running."""
    settings = options.settings
    connection = ServiceConnection(local_service(settings), settings.model, settings.when_unfit)
    with LoopThread() as loop, exit_on_signals():
        if options.is_saved:
            stored = SqliteChatRepository(settings.data_dir, settings.cache_dir, has_drafts=False)
            with loop.within(stored) as repository, loop.within(connection):
                InlineSession(options, loop, connection, repository).run()
        else:
            with loop.within(connection):
                InlineSession(options, loop, connection, InMemoryChatRepository()).run()


class InlineSession:
    """One chat. `connection` and the repository live on `loop`; the caller closes them."""

    def __init__(
        self, options: ChatOptions, loop: LoopThread, connection: ServiceConnection, repository: ChatRepository
    ) -> None:
        self._options = options
        self._loop = loop
        self._connection = connection
        self._repository = repository
        self._scrollback = Scrollback()
        self._notices = LoadingLine()
        compaction = AutoCompaction.of(options.settings)
        tools = LazyTools(options.settings)
        session = ChatSession(
            connection,
            repository,
            time.monotonic,
            tools=tools,
            compaction=lambda: compaction,
            keeps_file_texts=lambda: options.settings.draft_corpus,
        )
        self._chat = InlineChat(
            session,
            options.settings.data_dir,
            self._scrollback,
            is_saved=options.is_saved,
            shows_stats=options.shows_stats,
            tools=tools,
        )

    def run(self) -> None:
        options = self._options
        self._loop.run(
            self._chat.open(
                options.chat_id,
                is_new=options.is_new,
                answered=options.chat,
                keeps_model=options.keeps_model,
                settings=options.settings,
            )
        )
        if options.tools:
            self._loop.run(self._chat.use_tools(options.tools))
        self._load()
        try:
            if options.prompt:
                self._loop.run(self._chat.ask(options.prompt))
                if self._chat.error is not None:  # which is printed
                    raise click.exceptions.Exit(self._chat.error.exit_status)
            else:
                self._converse()
        finally:
            self._loop.run(self._chat.close())

    def _load(self) -> None:
        try:
            self._wait_for_model()
        except UnfitError as error:
            if not confirm_load(error):
                raise
            self._connection.accept_unfit()
            self._wait_for_model()
        except UserError:
            if not self._loop.run(self._chat.replace_missing_model()):
                raise
            self._wait_for_model()
        self._notices.print(self._connection.state.notices)
        state, requested = self._connection.state, self._options.settings.ctx
        if state.n_ctx and requested not in (0, state.n_ctx):  # it was loaded already, otherwise
            note = f"{state.model} is loaded with {state.n_ctx} tokens of context, not {requested}."
            self._scrollback.print_line(f"Note: {note}")

    def _wait_for_model(self) -> None:
        with without_echo():
            self._loop.run(self._chat.wait_for(self._connection.client()))

    def _converse(self) -> None:
        prompt = LinePrompt(SLASH_WORDS, self._chat.arguments_of)
        prompt.remember(self._loop.run(self._repository.recent_questions()))
        branch = self._chat.branch
        self._scrollback.recall(branch)
        stands = f" {len(branch)} messages so far, /new starts another chat;" if branch else " ask a question;"
        if self._chat.is_answered_elsewhere:
            self._scrollback.print_line(f"{ANSWERED_ELSEWHERE} What you ask waits for its end.")
        self._scrollback.print_line(f"{self._connection.state.model}:{stands} /help for help, Ctrl-D to quit.")
        while not self._chat.is_quitting:
            try:
                text = prompt.read(self._chat.begun)
            except KeyboardInterrupt:
                click.echo()
                if self._chat.edited is None:
                    self._scrollback.print_line("Ctrl-D or /bye quits.")
                self._chat.cancel_edit()
                continue
            except EOFError:
                click.echo()
                return
            if text.strip():
                with suppress(KeyboardInterrupt), without_echo():  # Ctrl-C stopped the command, which reported it
                    self._loop.run(self._chat.submit(text))
                self._notices.print(self._connection.state.notices)


class LoopThread:
    """A context manager, for the thread that creates it. Leaving it cancels the remaining tasks and waits for them."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        # a daemon: a second Ctrl-C ends the process even if it hangs
        self._thread = threading.Thread(target=self._loop.run_forever, name="loop", daemon=True)

    def __enter__(self) -> LoopThread:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.run(_cancel_others())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Run `work` on the loop and return its result. An exception in the caller meanwhile, such as
        KeyboardInterrupt, cancels it and is raised again after its cleanup."""
        running = _Running(work)
        try:
            self._loop.call_soon_threadsafe(running.begin)
            running.wait()
        except BaseException:
            self._loop.call_soon_threadsafe(running.stop)
            running.wait()
            raise
        return running.result()

    @contextmanager
    def within(self, manager: AbstractAsyncContextManager[_Result]) -> Iterator[_Result]:
        """Enter `manager` on the loop for the block."""
        entered = self.run(manager.__aenter__())
        try:
            yield entered
        finally:
            self.run(manager.__aexit__(None, None, None))


class _Running(Generic[_Result]):
    """Work handed to the loop; `begin` and `stop` run in the loop's thread."""

    def __init__(self, work: Coroutine[Any, Any, _Result]) -> None:
        self._work = work
        self._task: asyncio.Task[_Result] | None = None
        self._has_ended = threading.Event()

    def begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._work)
        self._task.add_done_callback(lambda _: self._has_ended.set())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        else:  # interrupted before the loop started it
            self._work.close()
            self._has_ended.set()

    def wait(self) -> None:
        while not self._has_ended.wait(_POLL_S):
            pass

    def result(self) -> _Result:
        assert self._task is not None
        return self._task.result()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
