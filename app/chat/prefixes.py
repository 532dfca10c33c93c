"""What engines computed of a chat, deleted with it: the one place that does so, for the app and the command line."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from app.protocol.errors import ServiceError
from app.settings.private_files import remove_prefixes
from quantizer.system.errors import UserError

_TIMEOUT_S = 10.0  # a service that starts or computes a long step; what it saves later goes at the app's next start

Forget = Callable[[Sequence[str]], Awaitable[None]]
"""Lets a service delete what it computed of the chats with these keys, in memory and on its disk."""


async def delete_prefixes(
    keys: Sequence[str], cache_dir: Path, forget: Forget | None = None, *, is_own_service: bool = True
) -> UserError | None:
    """Delete the computed prefixes of chats by their `prompt_cache_key`; return what kept the service from it.

    A service of our own deletes its files, which are in `cache_dir`; they are deleted here only where it did not, or
    where `forget` goes to another machine. Raises StorageError.
    """
    failure: UserError | None = None
    if forget is not None:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await forget(keys)
        except TimeoutError:
            failure = ServiceError("The service did not answer in time.", "Try again.")
        except UserError as error:
            failure = error
    if forget is None or failure is not None or not is_own_service:
        await asyncio.to_thread(remove_prefixes, cache_dir, keys)
    return failure
