"""The life of one server: started when it is needed, stopped when it is idle, started again when it died.

Owns the connection, which lives in a task of its own, what was listed over it, and when the server may be started
again. Independent of what is asked over a connection. `app.tools.mcp.sdk` is imported, in a thread, when one opens.
"""

from __future__ import annotations

import asyncio
import importlib
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TypeVar

from app.common.event_log import log_event
from app.common.extras import MCP
from app.tools.mcp.config import ServerConfig, ToolError, identity_of
from app.tools.mcp.connection import Connect, Connection, Observer, RefusedError, ServerInfo
from app.tools.mcp.listing import Prompt, Resource, ToolListing, listed_prompts, listed_resources, listed_tools
from app.tools.mcp.process import end_orphans
from quantizer.figures import format_number
from quantizer.system.errors import UserError

_T = TypeVar("_T")
_MAX_DOUBLINGS = 7  # of the time until a server that does not start is tried again: about an hour


@dataclass(frozen=True, slots=True)
class Limits:
    """Times in seconds: to start (a first start may download), to list, to show that it is alive, to ask for folders
    and to take them, until an idle server is stopped, before one that did not start is tried again; and how many deaths
    within how long are too many."""

    start_s: float = 60.0
    list_s: float = 30.0
    alive_s: float = 5.0
    roots_s: float = 1.0
    settle_s: float = 0.1
    idle_s: float = 600.0
    retry_s: float = 30.0
    max_deaths: int = 3
    deaths_within_s: float = 300.0


DEFAULT_LIMITS = Limits()


class LoopClock:
    """The time and the sleep of the event loop; tests have their own."""

    def now(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@dataclass(frozen=True, slots=True)
class Listed:
    tools: ToolListing = field(default_factory=ToolListing)
    prompts: tuple[Prompt, ...] = ()
    resources: tuple[Resource, ...] = ()


@dataclass(slots=True, eq=False)
class Link:
    """An open connection, the task that holds it, and the event that ends it. `is_stale` says that what was listed has
    changed since, `is_over` that the server is gone."""

    connection: Connection
    owner: asyncio.Task[None]
    stop: asyncio.Event
    listed: Listed = field(default_factory=Listed)
    is_stale: bool = False
    is_over: bool = False
    stopped_call_at: int = -1  # messages received when a call was stopped in the middle, -1 for none


class ServerLifecycle:
    """Opens, watches and ends the connections of one server, called `name` where something is reported."""

    def __init__(
        self,
        name: str,
        config: ServerConfig,
        observer: Observer,
        connect: Connect | None = None,
        limits: Limits = DEFAULT_LIMITS,
        clock: LoopClock | None = None,
    ) -> None:
        self._name = name
        self._config = config
        self._observer = observer
        self._connect = connect
        self._limits = limits
        self._clock = clock or LoopClock()
        self._changing = asyncio.Lock()
        self._link: Link | None = None
        self._opening: asyncio.Task[None] | None = None
        self._owners: set[asyncio.Task[None]] = set()
        self._n_uses = 0
        self._last_use_s = self._clock.now()
        self._is_closed = False
        self._deaths_s: deque[float] = deque()
        self._last_death = ""
        self._retry_at_s = 0.0
        self._n_failures = 0
        self.listed: Listed | None = None
        self.info: ServerInfo | None = None
        self.problem: UserError | None = None

    @property
    def is_running(self) -> bool:
        return self._link is not None and not (self._link.is_over or self._link.stop.is_set())

    @property
    def is_stale(self) -> bool:
        return self._link is not None and self._link.is_stale

    def mark_stale(self) -> None:
        if self._link is not None:
            self._link.is_stale = True

    @asynccontextmanager
    async def using(self) -> AsyncGenerator[Link, None]:
        """Yield a connection whose listing is up to date; it is not idle meanwhile. Raises ToolError."""
        self._n_uses += 1
        try:
            async with self._changing:
                link = await self._ready()
            yield link
        finally:
            self._n_uses -= 1
            self._last_use_s = self._clock.now()

    async def why_ended(self, link: Link) -> str:
        """Return why the server is gone, which a call over `link` noticed, as a part of a sentence."""
        link.is_over = True
        await asyncio.wait({link.owner}, timeout=self._limits.alive_s)
        return self._last_death or "the connection was closed"

    async def restart(self) -> None:
        """Stop the server, and forget why it could not be started: the next use tries at once."""
        self._give_up_opening()
        async with self._changing:
            await self._stop()
            self._deaths_s.clear()
            self._n_failures, self._retry_at_s, self.problem, self.listed = 0, 0.0, None, None

    async def close(self) -> None:
        self._is_closed = True
        self._give_up_opening()
        async with self._changing:
            await self._stop()

    def _give_up_opening(self) -> None:
        """End a connection that is being opened: nobody waits for a server that takes its time to start."""
        if self._opening is not None:
            self._opening.cancel()

    async def _ready(self) -> Link:
        link = self._link
        if link is not None and link.is_over:
            await asyncio.wait({link.owner}, timeout=self._limits.alive_s)
        if link is not None and not await self._is_alive(link):
            await self._stop()
            link = None
        if link is None:
            return await self._start()
        if link.is_stale:
            try:
                await self._list(link)
            except UserError as error:  # a server that cannot say what changed is stopped
                await self._stop()
                raise self._failed(error) from error
        return link

    async def _is_alive(self, link: Link) -> bool:
        """Return whether the connection is open, and the server has said anything since a call was stopped, or does."""
        if link.is_over or link.stop.is_set():
            return False
        if link.stopped_call_at == link.connection.n_received:
            try:
                await within(self._limits.alive_s, link.connection.list_tools(), "list its tools")
            except RefusedError:
                pass
            except ToolError:
                self._observer.log("does not react since a call was stopped; it is started again")
                return False
        link.stopped_call_at = -1
        return True

    async def _start(self) -> Link:
        self._check_may_start()
        link: Link | None = None
        try:
            link = await self._opened()
            await self._list(link)
        except UserError as error:
            raise self._failed(error) from error
        finally:
            self._opening = None
            if link is not None and link.listed is not self.listed:  # cancelled, or it did not list
                link.stop.set()
        self.problem, self._n_failures = None, 0
        self._link = link
        return link

    def _check_may_start(self) -> None:
        """Raise ToolError where the server may not be started, or not yet."""
        if self._is_closed:
            raise ToolError(f"The MCP server {self._name} was closed.")
        if self._config.launch is None:
            raise ToolError(f"The entry of the MCP server {self._name} is not valid. {self._config.problem}")
        now_s = self._clock.now()
        if self.problem is not None and now_s < self._retry_at_s:
            raise self.problem
        while self._deaths_s and now_s - self._deaths_s[0] > self._limits.deaths_within_s:
            self._deaths_s.popleft()
        if len(self._deaths_s) >= self._limits.max_deaths:
            often = f"{len(self._deaths_s)} times within {format_number(self._limits.deaths_within_s / 60)} minutes"
            cause = f"The MCP server {self._name} ended {often}: {self._last_death}."
            self.problem = ToolError(cause, "It is left alone for a while, or until /tools lists all servers.")
            raise self.problem

    def _failed(self, error: UserError) -> ToolError:
        """Note that the server did not start, and return the error that says so until it may be tried again."""
        self._retry_at_s = self._clock.now() + self._limits.retry_s * 2 ** min(self._n_failures, _MAX_DOUBLINGS)
        self._n_failures += 1
        self.problem = ToolError(f"The MCP server {self._name} cannot be started. {error.cause}", error.remedy)
        self._observer.log(str(self.problem))
        return self.problem

    async def _opened(self) -> Link:
        """Open a connection in a task of its own, for as long as the server runs. Raises ToolError."""
        connect = self._connect or await sdk_connect()
        ready: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()
        stop = asyncio.Event()
        owner = asyncio.create_task(self._own(connect, ready, stop), name=f"mcp {self._name}")
        self._opening = owner
        self._owners.add(owner)
        owner.add_done_callback(self._owners.discard)
        try:
            async with asyncio.timeout(self._limits.start_s):
                connection = await ready
        except (TimeoutError, asyncio.CancelledError) as error:
            owner.cancel()
            if isinstance(error, TimeoutError):
                raise ToolError(f"It did not answer within {format_number(self._limits.start_s)} s.") from None
            raise
        self.info = connection.info
        return Link(connection, owner, stop)

    async def _own(self, connect: Connect, ready: asyncio.Future[Connection], stop: asyncio.Event) -> None:
        """Hold a connection until it is stopped, idle for too long, or ends; `ready` learns of a failed start."""
        try:
            async with connect(self._config, self._observer) as connection:
                if ready.cancelled():
                    return
                ready.set_result(connection)
                if reason := await self._watched(connection, stop):
                    self._died(reason)
                stop.set()
        except UserError as error:
            if not ready.done():
                ready.set_exception(error)
            elif not ready.cancelled() and not stop.is_set():
                self._died(f"{error.cause[:1].lower()}{error.cause[1:].rstrip('.')}")
        finally:
            stop.set()
            if not ready.done():
                ready.set_exception(ToolError("It was stopped."))

    async def _watched(self, connection: Connection, stop: asyncio.Event) -> str:
        """Return why the connection ended by itself, "" where it is ended from here."""

        async def until_idle() -> None:
            while True:
                idle_s = 0.0 if self._n_uses else self._clock.now() - self._last_use_s
                if idle_s >= self._limits.idle_s:
                    return
                await self._clock.sleep(self._limits.idle_s - idle_s)

        ended = asyncio.create_task(connection.wait_ended())
        others = (asyncio.create_task(stop.wait()), asyncio.create_task(until_idle()))
        try:
            await asyncio.wait((ended, *others), return_when=asyncio.FIRST_COMPLETED)
            return ended.result() if ended.done() and not stop.is_set() else ""
        finally:
            for task in (ended, *others):
                task.cancel()

    def _died(self, reason: str) -> None:
        self._deaths_s.append(self._clock.now())
        self._last_death = reason
        if self._clock.now() >= self._retry_at_s:  # otherwise it is known already that it does not start
            self.problem = ToolError(f"The MCP server {self._name} ended: {reason}.", "The next use starts it again.")
        self._observer.log(f"ended: {reason}")

    async def _stop(self) -> None:
        """End every connection, and wait until it has."""
        if self._link is not None:
            self._link.stop.set()
            self._link = None
        if self._owners:
            await asyncio.wait(set(self._owners))

    async def _list(self, link: Link) -> None:
        """Ask for all that the server has. Raises ToolError."""
        assert self._config.launch is not None
        link.is_stale = False
        connection, info = link.connection, link.connection.info
        tools = await self._asked(connection.list_tools, is_offered=info.has_tools)
        others: list[list[object]] = []
        for request, is_offered in (
            (connection.list_prompts, info.has_prompts),
            (connection.list_resources, info.has_resources),
        ):
            try:
                others.append(await self._asked(request, is_offered=is_offered))
            except RefusedError as error:  # its tools work all the same
                self._observer.log(str(error))
                others.append([])
        prompts, resources = others
        listing = listed_tools(self._name, identity_of(self._config.launch), tools, self._config.timeout_s)
        link.listed = self.listed = Listed(listing, listed_prompts(prompts), listed_resources(resources))

    async def _asked(self, request: Callable[[], Awaitable[list[object]]], *, is_offered: bool) -> list[object]:
        return await within(self._limits.list_s, request(), "list what it has") if is_offered else []


async def within(seconds: float, answer: Awaitable[_T], what: str) -> _T:
    """Return the answer of a server. Raises ToolError where it does not do `what` in time."""
    try:
        async with asyncio.timeout(seconds):
            return await answer
    except TimeoutError:
        raise ToolError(f"It did not {what} within {format_number(seconds)} s.") from None


async def sdk_connect() -> Connect:
    """Return how servers are reached. Raises ToolError where the package for it is not installed. Its import takes more
    than a second: in a thread the screen goes on. The first time, servers that outlived a process that was killed are
    ended there."""
    if not MCP.is_installed:
        missing = MCP.missing
        raise ToolError(missing.cause, missing.remedy)
    return await asyncio.to_thread(_load_sdk)


@cache
def _load_sdk() -> Connect:
    if n_orphans := end_orphans():
        log_event("mcp", f"ended {n_orphans} processes of servers whose localllm was killed")
    connect: Connect = importlib.import_module("app.tools.mcp.sdk.client").connect
    return connect
