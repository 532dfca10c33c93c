"""The shown chat while other windows write in it: their answers are followed, and the person goes where they went on.
What is taken over, and how, is `app.chat.session`'s."""

from __future__ import annotations

from contextlib import suppress

from quantizer.system.errors import StorageError
from tui.chat.actions import ChatView
from tui.history.sidebar import ChatSidebar

_FOLLOWED_EVERY_S = 0.5  # as often as another window saves its answer


class OtherWindows:
    """The methods that commands call, and the watch over what is stored, from `begin` on. Nothing moves below a person
    who edits a message."""

    def __init__(self, view: ChatView) -> None:
        self._view = view
        self._screen = view.screen

    def begin(self) -> None:
        self._screen.watch(self._screen.app, "app_focus", self._catch_up, init=False)
        self._screen.set_interval(_FOLLOWED_EVERY_S, self._follow)

    async def _catch_up(self, has_focus: bool) -> None:
        """Show what another window wrote in the shown chat, once the person is back at this one."""
        if has_focus and self._view.is_open.is_set() and self._view.edited_id is None:
            with self._screen.inform_on_error(StorageError):
                for sidebar in self._screen.own(ChatSidebar):
                    sidebar.read_soon()
                if await self._view.chat.catch_up():
                    self._screen.inform("Another window went on with this chat.")

    async def _follow(self) -> None:
        """Show how the answer grows that another window writes in the shown chat."""
        chat = self._view.chat
        is_free = self._view.is_open.is_set() and self._view.edited_id is None and not chat.is_answering
        if is_free and chat.conversation.elsewhere:
            with suppress(StorageError):  # the next question reports it
                await chat.catch_up()

    async def go_to_newest(self) -> None:
        await self._view.is_open.wait()
        with self._screen.inform_on_error(StorageError):
            if not await self._view.chat.go_to_newest():
                self._screen.inform("This is the newest message.")
            else:
                self._view.answer(lambda _: None)
