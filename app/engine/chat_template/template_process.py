"""The child process in which templates run, ended when one takes too long.

Owns the process and the time limit; what a template may do is `app.engine.chat_template.render`'s business.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from quantizer.errors import RequestError
from quantizer.process import detached_process_options, python_command

__all__ = ["TemplateProcess"]

TIMEOUT_S = 1.0
START_TIMEOUT_S = 30.0  # a cold disk may need this long to start Python; it is not the template's time
_LINE_LIMIT_BYTES = 64 << 20
_WARM_UP = {"template": "{{ 1 }}", "variables": {}}


class TemplateProcess:
    """Renders templates one at a time in a child that starts at first use and again after it had to be ended."""

    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._lock = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None

    async def render(
        self,
        template: str,
        messages: Sequence[dict[str, Any]],
        *,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """Return the prompt of `messages`. `variables` are bos_token, eos_token, tools and the like.

        Raises RequestError when the template refuses, fails, takes more than a second or 256 MiB.
        """
        variables |= {"messages": list(messages), "add_generation_prompt": add_generation_prompt}
        async with self._lock:
            answer = await self._ask({"template": template, "variables": variables})
        if "error" in answer:
            raise RequestError(
                f"The model's chat template refuses these messages: {answer['error']}",
                "Change the order or roles of the messages, or use /v1/completions.",
            )
        return str(answer["text"])

    async def close(self) -> None:
        """End the child, if there is one."""
        if self._process is not None:
            process, self._process = self._process, None
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def _ask(self, job: dict[str, Any]) -> dict[str, str]:
        try:
            process = self._process or await self._start()
            return await self._exchange(process, job, self._timeout_s)
        except TimeoutError:
            await self.close()
            raise RequestError(
                f"The model's chat template took more than {self._timeout_s:g} s and was ended.",
                "Use /v1/completions with this model, or another model.",
            ) from None
        except (BrokenPipeError, ConnectionResetError, ValueError):
            await self.close()
            raise RequestError(
                "The model's chat template ended its process: it asked for too much memory or nested too deep.",
                "Use /v1/completions with this model, or another model.",
            ) from None
        except asyncio.CancelledError:
            await self.close()  # its answer would be taken for the next one's
            raise

    async def _start(self) -> asyncio.subprocess.Process:
        self._process = await asyncio.create_subprocess_exec(
            *python_command("app.engine.chat_template.render"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=_LINE_LIMIT_BYTES,
            **detached_process_options(),
        )
        await self._exchange(self._process, _WARM_UP, START_TIMEOUT_S)
        return self._process

    async def _exchange(
        self, process: asyncio.subprocess.Process, job: dict[str, Any], timeout_s: float
    ) -> dict[str, str]:
        assert process.stdin is not None
        assert process.stdout is not None
        async with asyncio.timeout(timeout_s):
            process.stdin.write(json.dumps(job).encode() + b"\n")
            await process.stdin.drain()
            answer: dict[str, str] = json.loads(await process.stdout.readline())
        return answer
