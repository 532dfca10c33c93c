"""What the person says into the microphone, written into the prompt; and messages read aloud. Imported when it is first
used."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

from app.chat.activity import Activity
from app.connection import localllm_service
from app.protocol.transcript import Transcribed
from app.sound.devices import MAX_RECORDED_S, play, record
from app.sound.spoken_text import spoken_text
from quantizer.system.errors import UsageError, UserError
from quantizer.system.files import open_private
from quantizer.system.temporary_folder import temporary_folder
from tui.chat.actions import ChatView
from tui.chat.draft_actions import UnreadMedia, find_readers
from tui.chat.shell_actions import fail

if TYPE_CHECKING:
    from app.client.service_client import ServiceClient
    from app.protocol.speech import Said


class Voice:
    """`activity` is what goes on, None for nothing; `on_change` is called when it changes. One thing runs at a time,
    and nothing of what was said is kept."""

    def __init__(self, view: ChatView, on_change: Callable[[], None]) -> None:
        self.activity: Activity | None = None
        self._view = view
        self._on_change = on_change
        self._task: asyncio.Task[None] | None = None
        self._recorded: asyncio.Event | None = None  # set to end the recording that runs
        self._is_speaking = False
        self._speaker = ""  # the model that spoke last; empty: the only one that there is

    @property
    def is_running(self) -> bool:
        return self._task is not None

    @property
    def keys(self) -> list[tuple[str, str]]:
        """The keys that matter while something goes on, each with a word."""
        custom = self._view.screen.app_context.settings_controller.keys
        words = (("record", "write it down"),) if self.is_recording else ()
        words = (*words, ("stop", "stop" if self._is_speaking else "drop"))
        found = [(self._view.screen.TABLE.find(name), word) for name, word in words]
        return [(command.key_name(custom).lower(), word) for command, word in found if command is not None]

    @property
    def is_recording(self) -> bool:
        return self._recorded is not None and not self._recorded.is_set()

    async def record(self) -> None:
        """Begin to record; while that goes on, end it, and write down what was said. Ends what is read aloud. Raises
        UsageError while the former recording is written down."""
        if self._is_speaking:
            await self.stop()
        if self.is_recording:
            self.end_recording()
        elif self._task is not None:
            raise UsageError("What you said is being written down.", "Esc drops it.")
        else:
            self._recorded = asyncio.Event()
            self._begin(self._record(self._recorded))

    async def speak(self, text: str, model: str = "") -> None:
        """Read a Markdown text aloud by `model`, without one by the model of the last time; while that goes on, stop
        it. Raises UsageError while the person's own words are recorded or written down."""
        if self._is_speaking:
            await self.stop()
            return
        if self._task is not None:
            raise UsageError("What you say is being recorded or written down.", "Esc drops it.")
        words = spoken_text(text)
        if not words:
            self._view.screen.inform("There is nothing to read aloud.")
            return
        self._is_speaking = True
        self._begin(self._speak(words, model or self._speaker))

    def end_recording(self) -> None:
        if self._recorded is not None:
            self._recorded.set()

    async def stop(self) -> bool:
        """Drop what was recorded, or stop speaking; return whether there was something to stop."""
        task = self._task
        if task is None:
            return False
        task.cancel()
        await asyncio.wait({task})
        return True

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        self._task = asyncio.create_task(work)
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = self._recorded = None
        self._is_speaking = False
        self._show(None)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, UserError):
            self._view.screen.warn(str(error))
        elif error is not None:
            self._view.run(partial(fail, error), "voice")

    def _show(self, activity: Activity | None) -> None:
        self.activity = activity
        self._on_change()

    async def _record(self, must_stop: asyncio.Event) -> None:
        self._show(Activity("opening the microphone"))
        client, model = await self._hearing_model()  # first: nobody speaks for minutes to learn that there is none
        with temporary_folder("record") as folder:
            path = folder / "recording.wav"
            open_private(path, is_new=True).close()
            length_s = await record(path, must_stop, self._recording)
            must_stop.set()  # by itself, at the longest
            if not length_s:
                return  # ended before the microphone was open
            if length_s >= MAX_RECORDED_S:
                self._view.screen.inform(f"The recording ended after {MAX_RECORDED_S / 60:.0f} minutes.")
            self._show(Activity("writing down what you said"))
            text = ""
            async with aclosing(client.transcribe(path, model)) as events:
                async for event in events:
                    text = event.text if isinstance(event, Transcribed) else text
        self._insert(text.strip())

    async def _speak(self, words: str, speaker: str) -> None:
        def began(_said: Said) -> None:
            self._speaker = speaker  # which is one
            self._show(Activity("reading aloud"))

        self._show(Activity("preparing to read aloud"))
        client = await localllm_service(self._view.connection)
        await play(client.speak(words, speaker), began)

    def _recording(self, recorded_s: float) -> None:
        minutes, seconds = divmod(int(recorded_s), 60)
        self._show(Activity("recording", facts=(f"{minutes}:{seconds:02}",)))

    async def _hearing_model(self) -> tuple[ServiceClient, str]:
        """Return the service, and the model that writes down what was said: the chat's own, else one in the library
        that hears, loaded and small ones first. Raises UsageError where there is none."""
        client, state = await localllm_service(self._view.connection), self._view.connection.state
        if state.hears:
            return client, state.model
        found = await find_readers(client, UnreadMedia(False, True))
        if not found:
            raise UsageError("No local model hears.", "F6 downloads one, such as ggml-org/Qwen3-ASR-0.6B-GGUF.")
        return client, found[0].loaded_as or found[0].id

    def _insert(self, text: str) -> None:
        """Insert a text at the cursor, a blank before it where a word is."""
        if not text:
            self._view.screen.inform("No words were recognised.")
            return
        prompt = self._view.prompt
        before = prompt.before_cursor
        prompt.insert_pasted(f" {text}" if before and not before[-1].isspace() else text)
        self._view.focus_prompt()
