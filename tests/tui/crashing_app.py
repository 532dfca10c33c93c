"""The app with a fault: `crashing_app.py FEATURE` fails there with chat texts in its variables after F1.

The error's message and variables contain prompts and control sequences.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

import httpx

from app.chat.store.chat_store import ChatStore
from app.settings.settings import load_settings
from quantizer.system.errors import UserError
from tui import __main__
from tui.app import LocalllmApp

__all__ = ["FAULTS", "REFUSAL"]

REFUSAL = UserError("This cannot be.", "Do something else.")


def _fail() -> None:
    with ChatStore(load_settings().data_dir) as store:
        prompts = " ".join(store.messages.recent_prompts(10))
    raise LookupError(f"\x1b[1337m{prompts}") from httpx.DecodingError(f"\x1b]1337;{prompts}\x07")


async def _fail_later() -> None:
    _fail()


async def _fail_unseen(app: LocalllmApp) -> None:
    task = asyncio.create_task(_fail_later())
    await asyncio.wait([task])
    app.notify("It has failed")


def _fail_at_keys(app: LocalllmApp) -> None:
    assert app._driver is not None
    app._driver.process_message = lambda message: _fail()  # type: ignore[method-assign]  # in the thread that reads


def _refuse() -> None:
    raise REFUSAL


FAULTS: dict[str, Callable[[LocalllmApp], object]] = {
    "handler": lambda app: _fail(),
    "timer": lambda app: app.set_timer(0.01, _fail),
    "worker": lambda app: app.run_worker(_fail_later()),
    "thread": lambda app: app.run_worker(_fail, thread=True),
    "keys": _fail_at_keys,
    "refusal": lambda app: app.set_timer(0.01, _refuse),  # one of a command is a notice
    "unseen": lambda app: app.run_worker(_fail_unseen(app)),
}

if __name__ == "__main__":
    fault = FAULTS[sys.argv.pop(1)]
    LocalllmApp.show_help = lambda app, _topic="": fault(app) and None  # type: ignore[assignment, func-returns-value, misc, return-value]
    __main__.main()
