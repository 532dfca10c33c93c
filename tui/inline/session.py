"""A chat in the scrollback from start to end.

Owns the turn-taking between the prompt in the main thread and the event loop in another.
"""

from __future__ import annotations

import time
from contextlib import suppress

import click

from app.chat.compaction import AutoCompaction
from app.chat.repository import ChatRepository, InMemoryChatRepository, SqliteChatRepository
from app.cli.confirm import confirm_load
from app.cli.output.answer import LoadingLine
from app.cli.user_interface import ChatOptions, exit_on_signals
from app.protocol.errors import UnfitError
from app.tools.backend import LazyTools
from quantizer.system.errors import UserError
from tui.chat.session import ChatSession
from tui.connection import ServiceConnection, local_service
from tui.inline.chat import InlineChat
from tui.inline.commands import SLASH_WORDS
from tui.inline.loop_thread import LoopThread
from tui.inline.scrollback import LinePrompt, Scrollback, without_echo


def run_inline(options: ChatOptions) -> None:
    """Run the chat until the user quits, or answer its one question. Raises UserError, and KeyboardInterrupt if nothing
    is running."""
    settings = options.settings
    connection = ServiceConnection(local_service(settings), settings.model, settings.when_unfit)
    with LoopThread() as loop, exit_on_signals():
        if options.is_saved:
            with loop.within(SqliteChatRepository(settings.data_dir)) as repository, loop.within(connection):
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
        tools = LazyTools(options.settings.data_dir)
        session = ChatSession(
            connection, repository, time.monotonic, lambda: None, tools, compaction=lambda: compaction
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
        """Open the chat, load the model, and answer."""
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
                self._answer_once(options.prompt)
            else:
                self._converse()
        finally:
            self._loop.run(self._chat.close())

    def _load(self) -> None:
        """Load the model; ask before loading one that fits only partly."""
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
        self._warn_about_context()

    def _wait_for_model(self) -> None:
        with without_echo():
            self._loop.run(self._chat.wait_for(self._connection.client()))

    def _answer_once(self, question: str) -> None:
        self._loop.run(self._chat.ask(question))
        if self._chat.error is not None:  # which is printed
            raise click.exceptions.Exit(self._chat.error.exit_status)

    def _converse(self) -> None:
        prompt = LinePrompt(SLASH_WORDS, self._chat.arguments_of)
        prompt.remember(self._loop.run(self._repository.recent_questions()))
        self._greet()
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
                self._submit(text)

    def _submit(self, text: str) -> None:
        with suppress(KeyboardInterrupt), without_echo():  # Ctrl-C stopped the command, which reported it
            self._loop.run(self._chat.submit(text))
        self._notices.print(self._connection.state.notices)

    def _greet(self) -> None:
        """Print the last exchange and a hint."""
        branch = self._chat.branch
        self._scrollback.recall(branch)
        stands = f" {len(branch)} messages so far, /new starts another chat;" if branch else " ask a question;"
        self._scrollback.print_line(f"{self._connection.state.model}:{stands} /help for help, Ctrl-D to quit.")

    def _warn_about_context(self) -> None:
        """Warn if a model that was already loaded has another context size than requested."""
        state, requested = self._connection.state, self._options.settings.ctx
        if state.n_ctx and requested not in (0, state.n_ctx):
            self._scrollback.print_line(
                f"Note: {state.model} is loaded with {state.n_ctx} tokens of context, not {requested}."
            )
