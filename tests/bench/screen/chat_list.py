"""How late the terminal app's event loop is at worst while a person goes about a long list of chats.

    uv run python tests/bench/screen/chat_list.py [--chats 10000]

The real screen at 120×40 without a terminal, a clock in its loop; keys are pressed and what comes of them awaited, in
the list and in what a search for a word of nearly every chat finds. Late by more than 200 ms is a gap that is seen:
ends with 1 then.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from textual.pilot import Pilot

from app.chat.store.chat_store import ChatStore
from app.connection import ServiceConnection
from app.settings.settings import Settings
from tests.app.client.scripted_client import ScriptedClient
from tests.bench.screen.search_chats import fill
from tests.bench.screen.tui_work import LIMIT_MS, Clock, text_of
from tui.app import LocalllmApp

_WORD = "the"
_PATIENCE_S = 120.0


async def until(pilot: Pilot[None], holds: Callable[[str], bool]) -> None:
    """Wait until what is on the screen is as wanted."""
    deadline_s = time.perf_counter() + _PATIENCE_S
    while not holds(text_of(pilot.app)):
        if time.perf_counter() > deadline_s:
            raise SystemExit(f"What was waited for never came:\n{text_of(pilot.app)}")
        await asyncio.sleep(0.002)


async def go_about(pilot: Pilot[None], clock: Clock, n_chats: int) -> None:
    """Go to the ends of the list, change it, search, and go to the ends of what is found."""
    all_of_them = f"{n_chats} chats"
    with clock.during("open"):
        await pilot.press("f5")
        await until(pilot, lambda seen: "chats shown, more below" in seen)
    for name, keys, awaited in (
        ("end", ["end"], all_of_them),
        ("up", ["up"] * 20, all_of_them),
        ("page up", ["pageup"] * 20, all_of_them),
        ("pin", ["p"], all_of_them),
        ("home", ["home"], "◆"),
        ("unpin", ["p"], all_of_them),
        ("search", ["slash", *_WORD], "chats shown, more below"),
        ("end of what is found", ["enter", "end"], ""),
    ):
        with clock.during(name):
            await pilot.press(*keys)
            await until(pilot, lambda seen, awaited=awaited: awaited in seen)
            if name == "end of what is found":
                await until(pilot, lambda seen: "chats shown, more below" not in seen)


async def measure(folder: Path, n_chats: int) -> Clock:
    """Return how late the loop was."""
    clock = Clock()
    ticking = asyncio.create_task(clock.run())
    async with ServiceConnection(ScriptedClient().opened, "guide") as connection:
        app = LocalllmApp(connection, settings=Settings(data_dir=folder, cache_dir=folder))
        async with app.run_test(size=(120, 40)) as pilot:
            await go_about(pilot, clock, n_chats)
    ticking.cancel()
    return clock


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chats", type=int, default=10_000)
    n_chats: int = parser.parse_args().chats
    with TemporaryDirectory() as name:
        folder = Path(name)
        with ChatStore(folder) as store:
            fill(store, n_chats, 2)
        clock = asyncio.run(measure(folder, n_chats))
    for doing, late_ms in clock.worst_ms.items():
        print(f"{doing:28} {clock.took_s[doing]:6.2f} s  late by {late_ms:5.0f} ms at worst")
    sys.exit(max(clock.worst_ms.values()) > LIMIT_MS)


if __name__ == "__main__":
    main()
