"""Keys in the order in which they were pressed: what follows a key that may open or focus a text field waits until the
field is there. Over ssh a word arrives with the key before it, and Textual would send it to whoever had the focus."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from textual._time import get_time  # the clock of an event's `time`
from textual.app import App, ScreenStackError
from textual.dom import DOMNode
from textual.events import Key, Paste
from textual.widget import Widget
from textual.widgets import Input, TextArea
from textual.worker import WorkerCancelled, WorkerFailed

KEYS_WAIT = "keys-wait"  # the group of workers that open or close what takes the next key
_LONGEST_WAIT_S = 3.0  # a handler may wait for the service; keys must not wait as long
_N_ROUNDS = 2
_TYPING_PAUSE_S = 0.2  # within which the next key follows when somebody types on without looking
_LOOK_S = 0.05  # between two looks whether who was to handle a key is still there


class KeyQueue:
    """Passes keys and pastes of one app on, by `dispatch`. A letter that a text field inserts is passed on at once, so
    that fast typing costs nothing. After any other key the next one waits: for the handlers of the focused widget and
    of all above it, then for a screen that they opened."""

    def __init__(self, app: App[Any], dispatch: Callable[[Key | Paste], Awaitable[None]]) -> None:
        self._app = app
        self._dispatch = dispatch
        self._waiting: deque[Key | Paste] = deque()
        self._settling: asyncio.Task[None] | None = None
        self._drops_until_s = 0.0

    async def add(self, event: Key | Paste) -> None:
        self._waiting.append(event)
        if self._settling is None:
            await self._pass_on()

    def drop_typed_ahead(self) -> None:
        """Drop the keys behind one that was refused, up to a pause or Esc: what it did not open would have taken them,
        and a list would run them as commands. A text field keeps what is typed into it."""
        self._drops_until_s = get_time() + _TYPING_PAUSE_S

    def _drops(self, event: Key | Paste, receiver: Widget | None) -> bool:
        # When a key was read counts, not when it's handled: a busy machine takes seconds for the keys of one burst.
        if event.time >= self._drops_until_s or isinstance(receiver, Input | TextArea):
            return False
        is_escape = isinstance(event, Key) and event.key == "escape"
        self._drops_until_s = 0.0 if is_escape else event.time + _TYPING_PAUSE_S
        return not is_escape

    async def _pass_on(self) -> None:
        """Pass on what waits, up to a key that may change where the next one belongs. Runs in the app's task."""
        self._settling = None
        while self._waiting:
            event = self._waiting.popleft()
            receiver = self._app.focused
            if self._drops(event, receiver):
                continue
            await self._dispatch(event)
            if not _inserts(receiver, event):
                self._settling = asyncio.create_task(self._settle(receiver))
                self._settling.add_done_callback(lambda _: self._app.call_later(self._pass_on))
                return

    async def _settle(self, receiver: Widget | None) -> None:
        """Return once the key has been handled and the focus stays where it is, or after `_LONGEST_WAIT_S`."""
        last, n_same = None, 0
        with suppress(TimeoutError, ScreenStackError):  # without a screen, the app is ending
            async with asyncio.timeout(_LONGEST_WAIT_S):
                # Once for the key: from the receiver up to the app, as it bubbles, which runs the action of a binding.
                # Once more for the message that the action sent (Enter in a field: Submitted), and `Widget.focus`.
                while n_same < _N_ROUNDS:
                    for node in (receiver or self._app.screen).ancestors_with_self:
                        await _caught_up(node)
                    for worker in [each for each in self._app.workers if each.group == KEYS_WAIT]:
                        with suppress(WorkerFailed, WorkerCancelled):  # the app reports a failure
                            await worker.wait()
                    receiver = self._app.focused
                    n_same = n_same + 1 if last == (self._app.screen, receiver) else 1
                    last = (self._app.screen, receiver)


def _inserts(receiver: Widget | None, event: Key | Paste) -> bool:
    """Whether `receiver` inserts the text of `event`, and so keeps the focus."""
    if receiver is None:
        return False
    return isinstance(event, Paste) or receiver.check_consume_key(event.key, event.character)


async def _caught_up(node: DOMNode) -> None:
    """Return once `node` has handled what is in its queue now, or has been removed with what was left in it."""
    has_caught_up = asyncio.Event()
    if not node.call_later(has_caught_up.set):
        return
    while not (has_caught_up.is_set() or (isinstance(node, Widget) and node.is_mounted and not node.is_running)):
        with suppress(TimeoutError):
            await asyncio.wait_for(has_caught_up.wait(), _LOOK_S)
