"""The conversation on the screen: all messages to scroll through, a window of them mounted as widgets. Owns scrolling,
selection and which messages are mounted. One message is drawn by `tui.chat.transcript.message_view`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from textual import on
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.geometry import Region, Size
from textual.layout import DockArrangeResult
from textual.message import Message as TextualMessage
from textual.scrollbar import ScrollBar, ScrollBarRender
from textual.strip import Strip
from textual.widget import Widget

from app.chat.branches import TranscriptEntry
from app.chat.conversation import Message
from quantizer.system.errors import UserError
from tui.chat.notices import DeletionNotice, ErrorPanel, Greeting, Notice, RepetitionNotice
from tui.chat.transcript.message_view import MessageView, uniform_rows
from tui.pictures.picture_view import PictureView

_BESIDE = "beside"
_EIGHTHS = 8  # the least that the ends of a scroll bar's thumb move
# Each costs 10 to 20 ms to draw: so many at once are not felt.
STEP = 4
# Above this number, views some screens away are unmounted. By distance too: forty short messages may fit one screen.
_MAX_VIEWS = 12
_FAR_SCREENS = 2


class SteadyScrollBar(ScrollBar):
    """A vertical scroll bar that is drawn again only if its thumb moves by what can be seen: with every row of an
    answer that streams it becomes a little smaller."""

    _look: tuple[object, ...] = ()
    _rows: Sequence[Strip] = ()

    def render_lines(self, crop: Region) -> list[Strip]:
        bar, n_rows = self.render(), self.outer_size.height
        assert isinstance(bar, ScrollBarRender)
        thumb = n_rows * bar.window_size / max(bar.virtual_size, 1)
        place = (n_rows - max(thumb, 1)) * bar.position / max(bar.virtual_size - bar.window_size, 1)
        look = (int(_EIGHTHS * place), ceil(_EIGHTHS * thumb), bar.style, crop, self.opacity, *self.get_line_filters())
        if look != self._look:
            self._look, self._rows = look, super().render_lines(crop)
        return [*self._rows]


class SteadyScroll(VerticalScroll):
    """A scrolling container that keeps the topmost visible child on its row while others are mounted, removed or
    resized, unless it follows the end. Textual's anchor does the same for the end. What fits is at the bottom."""

    NEVER_HELD = ""  # the id of a child below which others are mounted
    _held: Widget | None = None
    _held_row = 0

    @property
    def vertical_scrollbar(self) -> ScrollBar:
        if self._vertical_scrollbar is None:
            bar = SteadyScrollBar(vertical=True, name="vertical", thickness=self.scrollbar_size_vertical)
            self._vertical_scrollbar, bar.display = bar, False
            self.app._start_widget(self, bar)  # noqa: SLF001 - as Textual starts its own
        return self._vertical_scrollbar

    @property
    def is_following(self) -> bool:
        return self._anchored and not self._anchor_released

    def follow(self) -> None:
        """Scroll to the end and stay there until the user scrolls away."""
        self._held = None
        self.anchor()

    def hold(self, child: Widget, row: int) -> None:
        """Keep `child` on a row of the view, counted from 0."""
        self._held, self._held_row = child, row

    def arrange(self, size: Size, optimal: bool = False) -> DockArrangeResult:
        """Arrange the children and scroll so that the held one does not move: before drawing, like Textual's compositor
        does for an anchor, which it too puts at a row below 0 if all fits."""
        arranged = super().arrange(size, optimal)
        if not self.is_following:
            end = arranged.total_region.bottom - size.height
            y = next((placed.region.y for placed in arranged.placements if placed.widget is self._held), None)
            place = end if end < 0 else None if y is None else max(0, min(y - self._held_row, end))
            if place is not None:
                self.set_reactive(Widget.scroll_y, place)
                self.set_reactive(Widget.scroll_target_y, place)
                self.vertical_scrollbar.position = place
        return arranged

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Hold the topmost visible child."""
        super().watch_scroll_y(old_value, new_value)
        shown = (child for child in self.children if child.display and child.id != self.NEVER_HELD)
        top = next((child for child in shown if child.virtual_region.bottom > new_value), None)
        if top is not None:
            self.hold(top, top.virtual_region.y - round(new_value))


@dataclass(frozen=True, slots=True)
class MessageWindow:
    """The positions from `first` up to, not including, `last`."""

    first: int = 0
    last: int = 0

    @classmethod
    def at_end(cls, n_messages: int) -> MessageWindow:
        return cls(max(0, n_messages - STEP), n_messages)

    @classmethod
    def at(cls, position: int, n_messages: int) -> MessageWindow:
        """Return a window that begins with `position`, or shortly before it near the end."""
        first = max(0, min(position, n_messages - STEP))
        return cls(first, min(first + STEP, n_messages))

    def __len__(self) -> int:
        return self.last - self.first

    def __contains__(self, position: int) -> bool:
        return self.first <= position < self.last

    def earlier(self) -> MessageWindow:
        return MessageWindow(max(0, self.first - STEP), self.last)

    def later(self, n_messages: int) -> MessageWindow:
        return MessageWindow(self.first, min(n_messages, self.last + STEP))

    def cut(self, n_messages: int) -> MessageWindow:
        last = min(self.last, n_messages)
        return MessageWindow(min(self.first, last), last)

    def common(self, other: MessageWindow) -> MessageWindow:
        """Return the intersection; if empty, an empty window at the beginning of `other`."""
        first, last = max(self.first, other.first), min(self.last, other.last)
        return MessageWindow(first, last) if first < last else MessageWindow(other.first, other.first)


@dataclass(frozen=True, slots=True)
class Place:
    """What is seen: the message on top, and its row in the view, counted from 0 and maybe negative."""

    message_id: int
    row: int


class Transcript(SteadyScroll):
    """Messages and notices in order. It follows new text until the user scrolls away."""

    can_focus = False
    NEVER_HELD = "earlier"

    @dataclass
    class NewText(TextualMessage):
        """`n_lines` came below what is seen, since the user scrolled away from the end; 0 if all is seen, None if it
        is unknown how many."""

        n_lines: int | None

    def __init__(self) -> None:
        super().__init__()
        self._left_at: tuple[MessageView, int] | None = None  # the last message, with its rows, when the user left
        self._n_new: int | None = 0
        self._entries: tuple[TranscriptEntry, ...] = ()
        self._views: list[MessageView] = []
        self._window = MessageWindow()  # the positions of `_views` in `_entries`
        self._pages_to_scroll = 0
        self._one_at_a_time = asyncio.Lock()
        # Held, not queried: an answer that ends while the app does finds the transcript's children gone.
        self._earlier = Notice("", id="earlier")
        self._earlier.display = False

    def compose(self) -> ComposeResult:
        yield self._earlier
        yield Greeting()

    def on_mount(self) -> None:
        self.follow()

    def render_lines(self, crop: Region) -> list[Strip]:
        return uniform_rows(super().render_lines, crop)

    def on_resize(self) -> None:
        for picture in self.query(PictureView):
            picture.call_later(picture.fit)

    # Display

    async def show(self, entries: Sequence[TranscriptEntry], at: int | None = None) -> None:
        """Show exactly these messages, scrolled to new ones at the end or to the one with the id `at`. That one is
        selected; it gets the focus if a message had it."""
        async with self._one_at_a_time:
            if self._is_closing:
                return
            has_focus = any(view is self.screen.focused for view in self._views)
            pairs = enumerate(zip(self._entries, entries, strict=False))
            n_both = min(len(self._entries), len(entries))
            n_same = next((n for n, (old, new) in pairs if old.message.id != new.message.id), n_both)
            n_new = len(entries) - n_same
            self._entries = tuple(entries)
            await self._move_to(self._window.cut(n_same))
            for view, entry in zip(self._views, self._entries[self._window.first : self._window.last], strict=True):
                if view.entry != entry:
                    await view.show(entry)
            await self._update_greeting()
            if at is not None:
                position = next(n for n, entry in enumerate(entries) if entry.message.id == at)
                await self._go_to(position, has_focus=has_focus)
            elif n_new:
                is_near = self._window.last == n_same and n_new <= STEP
                await self._move_to(self._window.later(len(entries)) if is_near else MessageWindow.at_end(len(entries)))
                self.follow()
        self.call_after_refresh(self._fill_window)

    async def write(self, message: Message, text: str) -> None:
        """Append `text` to the last message, which equals `message` now, whether it is mounted or not."""
        async with self._one_at_a_time:
            if self._is_closing or not self._entries or self._entries[-1].message.id != message.id:
                return  # of a chat that is no longer shown
            *others, last = self._entries
            entry = replace(last, message=message)
            self._entries = (*others, entry)
            if self._window.last == len(self._entries):
                await self._views[-1].write(entry, text)
        if not self.is_following:
            self.call_after_refresh(self._count_new)

    def toggle_thoughts(self) -> bool:
        """Expand or collapse the reasoning of the selected message, or of the last with any; return whether one has."""
        return any(view.toggle_thoughts() for view in ([self.selected] if self.selected else reversed(self._views)))

    def toggle_call(self) -> bool:
        """Expand or collapse the selected call of a tool, or the last one; return whether there is one."""
        return any(view.toggle_call() for view in ([self.selected] if self.selected else reversed(self._views)))

    async def add_notice(self, text: str) -> None:
        if not self._is_closing:
            await self.mount(Notice(text))

    async def add_repetition(self) -> None:
        if not self._is_closing:
            await self.mount(RepetitionNotice())

    def end_repetition(self) -> None:
        """Take back that an answer goes on repeating itself."""
        for child in self.children:
            if isinstance(child, RepetitionNotice):
                child.remove()

    async def add_beside(self, widget: Widget) -> None:
        """Append what is no message, until another chat is shown."""
        if not self._is_closing:
            widget.add_class(_BESIDE)
            await self.mount(widget)

    async def add_deletion(self, n_messages: int) -> None:
        await self.mount(DeletionNotice(n_messages))

    async def remove_last_deletion(self) -> None:
        for notice in list(self.query(DeletionNotice))[-1:]:
            await notice.remove()

    @property
    def is_greeting(self) -> bool:
        return bool(self.query(Greeting))

    async def add_error(self, error: UserError) -> None:
        """Append an error without a question, replacing an earlier one."""
        await self.query("Transcript > ErrorPanel").remove()
        await self.mount(ErrorPanel(error))

    async def clear(self) -> None:
        async with self._one_at_a_time:
            self._entries = ()
            await self._move_to(MessageWindow())
            await (
                self.query(f"Transcript > Notice, Transcript > ErrorPanel, Transcript > .{_BESIDE}")
                .exclude("#earlier")
                .remove()
            )
            await self._update_greeting()

    # Moving about

    @property
    def selected(self) -> MessageView | None:
        """The focused message, also within the handling of the key that focused it; else the marked one."""
        focused = next((view for view in self._views if view is self.screen.focused), None)
        return focused or next((view for view in self._views if view.is_marked), None)

    def mark(self, selected: MessageView | None) -> None:
        """Select a message for its actions and for commands, but leave the keys to the prompt; None selects none."""
        for view in self._views:
            view.is_marked = view is selected

    async def select_step(self, n_steps: int) -> bool:
        """Move the selection `n_steps` down (up if negative), starting below the last message if none is selected;
        return False below the last one."""
        selected = self.selected
        index = self._window.first + self._views.index(selected) if selected else len(self._entries)
        position = max(0, index + n_steps)
        if position >= len(self._entries):
            return False
        async with self._one_at_a_time:
            await self._go_to(position, has_focus=True)
        self.call_after_refresh(self._fill_window)
        return True

    async def go_to_start(self) -> None:
        async with self._one_at_a_time:
            if self._window.first:
                await self._move_to(MessageWindow.at(0, len(self._entries)))
        self.scroll_home(animate=False)
        self.call_after_refresh(self._fill_window)

    async def go_to_end(self) -> None:
        async with self._one_at_a_time:
            if self._window.last < len(self._entries):
                await self._move_to(MessageWindow.at_end(len(self._entries)))
        self.follow()
        self.call_after_refresh(self._fill_window)

    def scroll_pages(self, n_pages: int) -> None:
        """Scroll down by pages, or up if negative, two rows less each."""
        self._pages_to_scroll += n_pages
        self.call_after_refresh(self._scroll_pages)

    async def _scroll_pages(self) -> None:
        n_rows = self._pages_to_scroll * max(1, self.size.height - 2)
        self._pages_to_scroll = 0
        await self._scroll_rows(n_rows)

    async def _scroll_rows(self, n_rows: float) -> None:
        """Scroll as far as messages are mounted, and then, once more are, by the rest: a key may come before them, for
        instance just after the chat was opened."""
        above, below = max(0, self.scroll_y), max(0, self.max_scroll_y - self.scroll_y)
        now = max(-above, min(n_rows, below))
        if now:
            self.scroll_relative(y=now, animate=False, immediate=True)
        is_more = self._window.first > 0 if n_rows < 0 else self._window.last < len(self._entries)
        if now != n_rows and is_more and not self._is_closing:
            await self._fill_window()
            self.call_after_refresh(self._scroll_rows, n_rows - now)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if self.is_following:
            self._left_at = None
            self._tell_new(0)
        elif self._left_at is None and self._views:
            self._left_at = (self._views[-1], self._views[-1].size.height)
        self.call_after_refresh(self._fill_window)

    def follow(self) -> None:
        super().follow()
        self._left_at = None
        self._tell_new(0)

    def _count_new(self) -> None:
        if self.is_following or self._left_at is None:
            return
        view, n_rows = self._left_at
        if view not in self._views or self._window.last < len(self._entries):
            self._tell_new(None)  # it is not mounted any more
        else:
            behind = self._views[self._views.index(view) :]
            self._tell_new(max(sum(each.size.height for each in behind) - n_rows, 0))

    def _tell_new(self, n_lines: int | None) -> None:
        if n_lines != self._n_new:
            self._n_new = n_lines
            self.post_message(self.NewText(n_lines))

    @on(MessageView.KeysShown)
    def _keys_shown(self, event: MessageView.KeysShown) -> None:
        event.stop()
        self.call_after_refresh(event.bar.scroll_visible, animate=False)

    @property
    def entries(self) -> tuple[TranscriptEntry, ...]:
        return self._entries

    @property
    def place(self) -> Place | None:
        """Where the user is; None at the end, which is followed."""
        held = self._held
        if self.is_following or not isinstance(held, MessageView):
            return None
        return Place(held.entry.message.id, self._held_row)

    async def return_to(self, place: Place | None) -> None:
        """Go to a place; to the end for None, or if its message is gone."""
        position = None if place is None else self._position_of(place.message_id)
        if place is None or position is None:
            await self.go_to_end()
            return
        async with self._one_at_a_time:
            if position not in self._window:
                await self._move_to(MessageWindow.at(position, len(self._entries)))
            self.release_anchor()
            self.hold(self._views[position - self._window.first], place.row)
            self.refresh(layout=True)
        self.call_after_refresh(self._fill_window)

    async def show_match(self, message_id: int, text: str, number: int) -> None:
        """Scroll to the occurrence `number` of `text` in a message, in any case, and select it."""
        position = self._position_of(message_id)
        if position is None:
            return
        async with self._one_at_a_time:
            if position not in self._window:
                await self._move_to(MessageWindow.at(position, len(self._entries)))
            view = self._views[position - self._window.first]
            if not view.size.height:  # laid out at the next refresh
                self.hold(view, 0)
            self.release_anchor()
        self.call_after_refresh(self._show_match, view, text, number)

    def _show_match(self, view: MessageView, text: str, number: int) -> None:
        self.screen.clear_selection()
        if not view.is_attached or (found := view.find(text, number)) is None:
            view.scroll_visible(animate=False)
            return  # folded, or with marks between its letters
        widget, selection, row = found
        self.screen.selections = {widget: selection}
        y, node = row, widget
        while node is not self and isinstance(node.parent, Widget):
            y += node.virtual_region.y
            node = node.parent
        if not self.scroll_y < y < self.scroll_y + self.size.height - 1:
            self.scroll_to(y=max(0, y - self.size.height // 3), animate=False, immediate=True)
        self.call_after_refresh(self._fill_window)

    # Helpers

    def _position_of(self, message_id: int) -> int | None:
        return next((n for n, entry in enumerate(self._entries) if entry.message.id == message_id), None)

    @property
    def _is_closing(self) -> bool:
        """Whether it is being removed, as all is when the app ends: Textual displays nothing that it removes."""
        return not (self.is_attached and self.display)

    async def _fill_window(self) -> None:
        """Keep at least a screen mounted above and below the view, and at most a few."""
        if self._one_at_a_time.locked() or self._is_closing:
            return  # its holder calls this method afterwards
        async with self._one_at_a_time:  # which may have to wait: who waited before comes first
            rows, window = self.size.height, self._window
            if self.scroll_y < rows and window.first > 0:
                target = window.earlier()
            elif self.max_scroll_y - self.scroll_y < rows and window.last < len(self._entries):
                self.release_anchor()  # the window's end is not the chat's end
                target = window.later(len(self._entries))
            elif (target := self._without_distant()) == window:
                return
            await self._move_to(target)
        self.call_after_refresh(self._fill_window)

    def _without_distant(self) -> MessageWindow:
        first, last = self._window.first, self._window.last
        far = _FAR_SCREENS * self.size.height
        views, top, bottom, selected = list(self._views), self.scroll_y - far, self.scroll_y + far, self.selected
        while len(views) > _MAX_VIEWS and views[0].virtual_region.bottom < top and views[0] is not selected:
            del views[0]
            first += 1
        while len(views) > _MAX_VIEWS and views[-1].virtual_region.y > bottom and views[-1] is not selected:
            del views[-1]
            last -= 1
        return MessageWindow(first, last)

    async def _go_to(self, position: int, *, has_focus: bool) -> None:
        if position not in self._window:
            is_near = position in self._window.earlier() or position in self._window.later(len(self._entries))
            near = MessageWindow(min(self._window.first, position), max(self._window.last, position + 1))
            await self._move_to(near if is_near else MessageWindow.at(position, len(self._entries)))
        view = self._views[position - self._window.first]
        is_laid_out = view.size.height > 0
        # Where it is until it is scrolled to. One that is not laid out has no position to scroll to yet.
        self.hold(view, view.virtual_region.y - round(self.scroll_y) if is_laid_out else 0)
        self.release_anchor()
        ends_here = view.size.height >= self.size.height and view.region.bottom <= self.region.bottom
        # A message taller than the screen keeps its position.
        must_scroll = is_laid_out and not ends_here
        self.mark(None if has_focus else view)
        if has_focus:
            self.screen.set_focus(view, scroll_visible=must_scroll)  # at once: the next key may be queued already
        elif must_scroll:
            view.scroll_visible(animate=False)

    async def _move_to(self, window: MessageWindow) -> None:
        kept = self._window.common(window)
        start = kept.first - self._window.first
        stay = self._views[start : start + len(kept)] if len(kept) else []
        removed = [view for view in self._views if view not in stay]
        before = [MessageView(entry) for entry in self._entries[window.first : kept.first]]
        behind = [MessageView(entry) for entry in self._entries[kept.last : window.last]]
        with self.app.batch_update():
            if before:
                await self.mount_all(before, before=stay[0])
            if behind:
                is_end = not stay or window.last == len(self._entries)
                await self.mount_all(behind, after=None if is_end else stay[-1])
            if removed:
                await self.remove_children(removed)
            self._views, self._window = [*before, *stay, *behind], window
            n_earlier = window.first
            self._earlier.update(f"· {n_earlier} earlier messages: scroll up, or Ctrl+Home" if n_earlier else "")
            self._earlier.display = bool(n_earlier)

    async def _update_greeting(self) -> None:
        if self._entries:
            await self.query("Transcript > Greeting, Transcript > ErrorPanel").remove()
        elif not self.query(Greeting):
            await self.mount(Greeting())
