"""The child process that renders chat templates; it is killed when one takes too long.

Owns the process and the time limit. `app.engine.chat_template.render` owns what a template may do.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from app.protocol.errors import RequestError
from quantizer.figures import format_number
from quantizer.system.process import ChildProcess, python_command

TIMEOUT_S = 1.0
START_TIMEOUT_S = 30.0  # Python may start this slowly from a cold disk; the template gets its own time
_MAX_LINE_BYTES = 64 << 20
_WARM_UP = {"template": "{{ 1 }}", "variables": {}}


class TemplateProcess:
    """A renderer of templates, one at a time, in a child that starts at its first use and again after it was killed."""

    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._lock = asyncio.Lock()
        self._child: ChildProcess | None = None
        self._rendering: asyncio.Task[dict[str, str]] | None = None

    async def render(
        self, template: str, messages: Sequence[dict[str, Any]], *, add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        """Return the prompt of `messages`. `variables` are bos_token, eos_token, tools and the like. Raises
        RequestError when the template rejects the messages, fails, or takes more than a second or 256 MiB."""
        variables |= {"messages": list(messages), "add_generation_prompt": add_generation_prompt}
        reply = await self._reply({"template": template, "variables": variables})
        if "error" in reply:
            cause = f"The model's chat template rejects these messages: {reply['error']}"
            raise RequestError(cause, "Change the order or roles of the messages, or use /v1/completions.")
        return str(reply["text"])

    async def close(self) -> None:
        """Kill the child, if there is one."""
        await self._end_child()
        if self._rendering is not None:
            await asyncio.wait({self._rendering})
            await self._end_child()  # one that it was just starting

    async def _reply(self, job: dict[str, Any]) -> dict[str, str]:
        """Return the child's reply to `job`. Who leaves meanwhile leaves the job to its end, and its reply unread: a
        child that was killed for it would have to start anew before the next job."""
        await self._lock.acquire()
        self._rendering = asyncio.create_task(self._request(job))
        self._rendering.add_done_callback(self._on_rendered)
        return await asyncio.shield(self._rendering)

    def _on_rendered(self, rendering: asyncio.Task[dict[str, str]]) -> None:
        self._lock.release()
        if not rendering.cancelled():
            rendering.exception()  # it is raised to who waits, if anybody does

    async def _end_child(self) -> None:
        if self._child is not None:
            child, self._child = self._child, None
            child.kill()
            await child.end()

    async def _request(self, job: dict[str, Any]) -> dict[str, str]:
        """Return the reply of a child to `job`. One that dies may have been killed by others, also while it waited for
        work: only a template at which a second one dies is to blame."""
        try:
            try:
                child = self._child or await self._start()
                return await _exchange(child, job, self._timeout_s)
            except ValueError:  # the child died, or its line is too long
                await self._end_child()
                return await _exchange(await self._start(), job, self._timeout_s)
        except TimeoutError:
            await self._end_child()
            cause = f"The model's chat template took more than {format_number(self._timeout_s)} s and was stopped."
            raise RequestError(cause, "Use /v1/completions with this model, or another model.") from None
        except ValueError:
            await self._end_child()
            cause = "The model's chat template ended its process: it used too much memory or nested too deep."
            raise RequestError(cause, "Use /v1/completions with this model, or another model.") from None
        except asyncio.CancelledError:
            await self._end_child()  # its reply would be taken for the next one's
            raise

    async def _start(self) -> ChildProcess:
        command = python_command("app.engine.chat_template.render")
        self._child = await ChildProcess.start(command, "chat template process", max_line_bytes=_MAX_LINE_BYTES)
        await _exchange(self._child, _WARM_UP, START_TIMEOUT_S)
        return self._child


async def _exchange(child: ChildProcess, job: dict[str, Any], timeout_s: float) -> dict[str, str]:
    async with asyncio.timeout(timeout_s):
        await child.send(job)
        reply: dict[str, str] = json.loads(await child.stdout.readline())
    return reply
