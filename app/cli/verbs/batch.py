"""`localllm batch`: a file of requests, answered into a file of answers, for which nobody has to stay connected."""

from __future__ import annotations

import asyncio
import shlex
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import click

from app.cli.options import LOAD_ANYWAY, option, options, options_of, setting_options
from app.cli.output.format import JobEvents, print_json
from app.common.terminal import printable
from app.options.jobs import BatchOptions, command_words
from app.settings.settings import Settings
from quantizer.system.errors import UsageError, UserError
from quantizer.system.files import explained, open_regular

if TYPE_CHECKING:
    from app.batch.requests import BatchRequest
    from app.batch.run import OutputFile, Tally
    from app.client.remote_engine import RemoteEngine
    from app.client.service_client import ServiceClient

_ANY_ENGINE = 8  # requests at once, where an engine does not say how many slots it has
_MOST_AT_ONCE = 256
_MOST_EXIT_STATUS = 100
_PATIENCE_S = 60.0  # of a job: that of a service which was killed may take a moment to end
_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class _Summary:
    """What a run did, as `--json` prints it; `answered` counts the lines of the output, those of earlier runs too."""

    output: str
    total: int
    answered: int
    failed: int
    prompt_tokens: int
    output_tokens: int
    seconds: float

    @classmethod
    def of(cls, output: Path, n_total: int, tally: Tally, seconds: float) -> _Summary:
        return cls(
            output=str(output),
            total=n_total,
            answered=tally.n_answered,
            failed=tally.n_failed,
            prompt_tokens=tally.n_prompt_tokens,
            output_tokens=tally.n_output_tokens,
            seconds=round(seconds, 3),
        )


@click.command(epilog="Example: localllm batch questions.jsonl -o answers.jsonl")
@options_of(BatchOptions)
@setting_options("ctx", "parallel", "host", "port", "connect", "api_key")
@option("assume_yes", help=LOAD_ANYWAY)
@options("wants_json")
@click.pass_context
def batch(
    context: click.Context,
    /,
    options: BatchOptions,
    *,
    assume_yes: bool,
    wants_json: bool,
    **flags: object,
) -> int:
    """Answer the requests in FILE, one on each line, in the form of OpenAI's Batch API:

    {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": […]}}

    The answers come in the order in which they are ready: custom_id says whose each is. Requests with the same
    beginning are answered one after another, so that it is read once. Other programs' requests go first.

    After Ctrl-C, a crash or a power failure the same command goes on where it stopped. The exit status is the number
    of lines that failed, 100 at most; each has its `error` in the output.
    """
    from app.batch.requests import MAX_FILE_BYTES, read_requests
    from app.batch.run import OutputFile
    from app.cli.resources import resolve_settings

    path = Path(options.input)
    with explained(f"{path} cannot be read", "Check the path.", UsageError):
        if path.stat().st_size > MAX_FILE_BYTES:
            raise UsageError(f"{path} is larger than {MAX_FILE_BYTES >> 20} MiB.", "Split it.")
        with open_regular(path) as file:
            requests = read_requests(str(path), file, options.model)
    options = replace(options, output=options.output or str(path.with_name(f"{path.stem}-answers.jsonl")))
    settings = resolve_settings(None, flags, assume_yes=assume_yes)
    events = context.find_object(JobEvents)
    patience_s = _PATIENCE_S if events else 0.0
    output_path = Path(options.output)
    with OutputFile(output_path, requests, retry_failed=options.retry_failed, patience_s=patience_s) as output:
        n_before = len(output.done)
        running = _Run(requests, output, options, settings, events)
        try:
            summary = asyncio.run(running.to_end())
        except (KeyboardInterrupt, UserError):
            if running.summary.answered:
                click.echo(printable(f"{_sentence(running.summary, n_before)} Go on with:"), err=True)
                click.echo(printable(f"  {_command(options, settings)}"), err=True)
            raise
    if wants_json:
        print_json(summary)
    else:
        click.echo(printable(_sentence(summary, n_before)))
    return 0 if events else min(summary.failed, _MOST_EXIT_STATUS)  # a job is done when all lines have an answer


class _Run:
    """One run of a batch."""

    def __init__(
        self,
        requests: list[BatchRequest],
        output: OutputFile,
        options: BatchOptions,
        settings: Settings,
        events: JobEvents | None,
    ) -> None:
        self._requests = requests
        self._output = output
        self._options = options
        self._settings = settings
        self._events = events
        self._begun_s = time.monotonic()
        self._told_s = 0.0

    @property
    def summary(self) -> _Summary:
        """What it did so far."""
        return _Summary.of(self._output.path, len(self._requests), self._output.tally, time.monotonic() - self._begun_s)

    async def to_end(self) -> _Summary:
        """Answer what has no answer yet. Raises the error by which nothing more can be answered."""
        from app.batch.run import run_batch
        from app.cli.output.progress import Meter
        from app.cli.resources import load_named, show_kept, show_notices
        from app.client.launcher import open_engine, running_service
        from app.protocol.chat import BATCH, PRIORITY_HEADER

        if len(self._output.done) == len(self._requests):
            return self.summary
        # a job asks the service that runs it, and starts no other
        opened = running_service(self._settings) if self._events else open_engine(self._settings, keeps=True)
        async with opened as client:
            show_notices(client)
            model = await load_named(client, self._options.model, self._settings)
            n_at_once = self._options.at_once or await self._n_slots(client, model)

            async def ask(request: BatchRequest) -> tuple[int, Any]:
                body = {**request.body, "model": model} if model else request.body
                return await client.answer(request.url, body, {PRIORITY_HEADER: BATCH})

            n_before, self._begun_s = len(self._output.done), time.monotonic()
            with Meter("Waiting for the first answer", len(self._requests)) as meter:
                meter.advance(n_before)

                def show(tally: Tally) -> None:
                    summary = self.summary
                    meter.bar.update(n_done=tally.n_answered, title=_rates(summary, n_before))
                    if self._events and time.monotonic() - self._told_s >= _EVERY_S:
                        self._told_s = time.monotonic()
                        self._events.emit(**asdict(summary))

                await run_batch(self._requests, ask, self._output, n_at_once, show)
            summary = self.summary  # without the seconds that closing takes
            show_kept(client, wants_json=self._events is not None)
        return summary

    async def _n_slots(self, client: ServiceClient | RemoteEngine, model: str) -> int:
        """Return how many answers of a batch the first request's engine computes at once. Raises the service's error
        for the only model of the batch, such as an unknown one, instead of writing it into every line."""
        named = {model} if model else {str(request.body.get("model") or "") for request in self._requests}
        first = model or str(self._requests[0].body.get("model") or "")
        try:
            props = await client.call("GET", f"/props?{urlencode({'model': first})}")
            n_slots = int(props.get("batch_slots") or props["total_slots"])  # llama-server has the latter alone
            return max(1, min(n_slots, _MOST_AT_ONCE))
        except UserError:
            if len(named) == 1 and not self._settings.connect:
                raise
        except (LookupError, TypeError, ValueError):  # an engine of others
            pass
        return _ANY_ENGINE


def _rates(summary: _Summary, n_before: int) -> str:
    seconds = max(summary.seconds, 1e-3)
    n_tokens = summary.prompt_tokens + summary.output_tokens
    requests_per_s = (summary.answered - n_before) / seconds
    n_out_per_s = summary.output_tokens / seconds
    return f"{requests_per_s:,.2f} requests/s, {n_tokens / seconds:,.0f} tok/s ({n_out_per_s:,.1f} of answers)"


def _sentence(summary: _Summary, n_before: int) -> str:
    failed = f", {summary.failed:,} of them by an error" if summary.failed else ""
    done = f"{summary.output}: {summary.answered:,} of {summary.total:,} requests are answered{failed}."
    return done if summary.answered == n_before else f"{done} {_rates(summary, n_before)}."


def _command(options: BatchOptions, settings: Settings) -> str:
    """Return the command that goes on. It does not ask again what failed until now: only what is not answered yet."""
    words = [word for word in command_words(replace(options, retry_failed=False)) if word != "--json"]
    return shlex.join(["localllm", *words, *(["--connect", settings.connect] if settings.connect else [])])
