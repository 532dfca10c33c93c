"""Times a chat of 300 messages in the terminal app: from the request to open it until it is on the screen, then a page
up, the first message, the last one and a resize, each until the app has nothing left to draw.

    uv run python tests/bench/screen/long_chat.py [N_MESSAGES]

The app runs without a terminal at 120×40, over a store on a folder that is thrown away; figures are milliseconds, on
the clock and of the processor. A page up is the slowest of twenty, and is timed at a terminal (POSIX) as well: from
the key until the last of what it drew is there. Without one, half of the time is the tester's, who waits for rest.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from textual.pilot import Pilot

from app.chat.conversation import MessageContent
from app.chat.repository import SqliteChatRepository
from app.chat.store.chat_store import ChatStore
from app.connection import ServiceConnection
from app.settings.settings import Settings
from tests.app.client.scripted_client import ScriptedClient
from tests.bench.screen.paced_engine import ANSWER, PacedEngine
from tests.tui.terminal import Terminal, eventually
from tui.app import LocalllmApp
from tui.chat.screen import ChatScreen

_PAGE_UP = b"\x1b[5~"
_AT_REST_S = 0.4  # nothing more is drawn


def write_chat(data_dir: Path, n_messages: int) -> int:
    """Keep a chat with `n_messages` and return its id."""
    with ChatStore(data_dir) as store:
        chat, leaf_id = store.chats.create(title="long"), None
        for number in range(n_messages):
            said = f"Question {number}?" if number % 2 == 0 else f"Answer {number}. {ANSWER}".replace("32", str(number))
            role = "user" if number % 2 == 0 else "assistant"
            leaf_id = store.messages.add(chat.id, leaf_id, MessageContent(role=role, content=said)).id
        return chat.id


async def main(n_messages: int) -> None:
    """Print one line a measurement."""
    with TemporaryDirectory() as folder:
        chat_id = write_chat(Path(folder), n_messages)
        with ChatStore(Path(folder)) as store:
            store.chats.create(title="short")
        settings = Settings(data_dir=Path(folder), cache_dir=Path(folder))
        async with (
            SqliteChatRepository(Path(folder)) as repository,
            ServiceConnection(ScriptedClient().opened, "guide") as connection,
        ):
            app = LocalllmApp(connection, repository, settings=settings)
            async with app.run_test(size=(120, 40)) as pilot:
                await measure(app, pilot, chat_id, n_messages)


async def measure(app: LocalllmApp, pilot: Pilot[None], chat_id: int, n_messages: int) -> None:
    """Open the chat and go about in it."""
    screen = app.screen
    assert isinstance(screen, ChatScreen)
    last = f"{'Question' if n_messages % 2 else 'Answer'} {n_messages - 1}"
    await screen.new_chat()
    await report("open, until its end is on the screen", opened(app, chat_id, screen), None)
    await report("... and all is drawn", pilot.pause(), lambda: True)
    pages = [await timed(pressed(pilot, "pageup")) for _ in range(20)]
    for name, spans_ms in zip(("", ", processor"), zip(*pages, strict=True), strict=True):
        print(f"{f'page up, slowest of 20{name}':45}{max(spans_ms):8.0f}   median {median(spans_ms):.0f}")
    await report("to the first message", pressed(pilot, "ctrl+home"), lambda: "Question 0?" in text_of(app))
    await report("to the last message", pressed(pilot, "ctrl+end"), lambda: "End." in text_of(app))
    await report("resize to 80 columns", pilot.resize_terminal(80, 40), lambda: True)
    print(f"messages {n_messages}, the last is {last}; widgets on the screen {len(list(screen.query('*')))}")


async def opened(app: LocalllmApp, chat_id: int, screen: ChatScreen) -> None:
    """Open the chat and wait until its last words are drawn."""
    await app.open_chat(chat_id)
    while "End." not in text_of(app):  # noqa: ASYNC110 - what is on the screen announces itself to nobody
        await asyncio.sleep(0.005)


async def pressed(pilot: Pilot[None], key: str) -> None:
    """Press a key and wait until the app is at rest."""
    await pilot.press(key)
    await pilot.pause()


async def timed(action: Awaitable[None]) -> tuple[float, float]:
    """Return how many milliseconds an action takes, and how many of them the processor works for this process."""
    started_s, worked_s = time.perf_counter(), time.process_time()
    await action
    return 1000 * (time.perf_counter() - started_s), 1000 * (time.process_time() - worked_s)


async def report(label: str, action: Awaitable[None], holds: Callable[[], bool] | None) -> None:
    """Print how long an action took; fails where what should be seen then is not."""
    span_ms, work_ms = await timed(action)
    print(f"{label:45}{span_ms:8.0f}   processor {work_ms:.0f}")
    assert holds is None or holds(), f"after {label}: not on the screen"


def page_ups_at_a_terminal(n_messages: int) -> list[float]:
    """Return how many milliseconds each of twenty pages up takes in a terminal."""
    with TemporaryDirectory() as folder, PacedEngine().serving() as engine:
        write_chat(Path(folder) / "data", n_messages)
        command = [sys.executable, "-m", "tui", "--connect", engine.url, "-m", "paced"]
        with Terminal.running(command, Path(folder)) as terminal:
            terminal.when("ready")
            time.sleep(_AT_REST_S)
            return [1000 * _until_drawn_s(terminal) for _ in range(20)]


def _until_drawn_s(terminal: Terminal) -> float:
    n_seen, pressed_s = len(terminal.seen), terminal.write(_PAGE_UP)
    eventually(lambda: len(terminal.seen) > n_seen or None, "a page")
    while (drawn_s := terminal.seen[-1][0]) > time.perf_counter() - _AT_REST_S:
        time.sleep(_AT_REST_S / 10)
    return drawn_s - pressed_s


def text_of(app: LocalllmApp) -> str:
    """Return what is on the screen."""
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())


if __name__ == "__main__":
    how_many = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    asyncio.run(main(how_many))
    drawn_ms = page_ups_at_a_terminal(how_many)
    print(f"{'page up at a terminal, slowest of 20':45}{max(drawn_ms):8.0f}   median {median(drawn_ms):.0f}")
