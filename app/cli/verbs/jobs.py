"""`localllm jobs`: the jobs of a running service: downloads, conversions, measurements."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from app.cli.options import options
from app.cli.output.format import format_bytes, print_json
from app.cli.resources import ask_service
from app.common.terminal import printable, printable_line
from quantizer.system.errors import UserError

if TYPE_CHECKING:
    from app.client.service_client import ServiceClient
    from app.protocol.job import Job


_job_id = click.argument("job_id", metavar="ID")


@click.group(epilog="Example: localllm jobs watch")
def jobs() -> None:
    """List, watch, cancel and retry jobs of a running service.

    The terminal app starts such jobs, and programs do at POST /api/localllm/jobs; `localllm pull` and the like run
    without a service.
    """


@jobs.command("list")
@options("wants_json")
def list_jobs(wants_json: bool) -> None:
    """List the jobs that wait, run or have ended, oldest first."""
    found = ask_service(lambda client: client.jobs())
    if wants_json:
        print_json(found)
        return
    for job in found:
        click.echo(_line(job))
    if not found:
        click.echo("There are no jobs.")


@jobs.command()
@click.argument("job_id", metavar="[ID]", required=False)
@options("wants_json")
def watch(job_id: str | None, wants_json: bool) -> None:
    """Print changes of job ID until it has ended, or of all jobs until Ctrl-C, which stops no job.

    Exits with 1 when job ID failed.
    """

    async def follow(client: ServiceClient) -> Job | None:
        job = None
        async for job in client.watch_job(job_id) if job_id else client.watch_jobs():
            _print(job, wants_json=wants_json)
        return job

    last = ask_service(follow)
    if last is not None and last.state != "done":
        raise last.error.error() if last.error else UserError(f"The job {last.id} was {last.state}.")


@jobs.command()
@_job_id
@options("wants_json")
def cancel(job_id: str, wants_json: bool) -> None:
    """Cancel job ID; a partial download is kept."""
    _print(ask_service(lambda client: client.cancel_job(job_id)), wants_json=wants_json)


@jobs.command()
@_job_id
@options("wants_json")
def retry(job_id: str, wants_json: bool) -> None:
    """Queue the ended job ID again. A download resumes."""
    _print(ask_service(lambda client: client.retry_job(job_id)), wants_json=wants_json)


@jobs.command()
@_job_id
def log(job_id: str) -> None:
    """Print the log of job ID."""
    click.echo(printable(ask_service(lambda client: client.job_log(job_id))), nl=False)


def _print(job: Job, *, wants_json: bool) -> None:
    if wants_json:
        print_json(job)
    else:
        click.echo(_line(job))


def _line(job: Job) -> str:
    share = f"{job.fraction:.0%}" if job.fraction is not None and not job.has_ended else ""
    rate = f"{format_bytes(int(job.bytes_per_s))}/s" if job.bytes_per_s else ""
    left = f"{job.remaining_s:.0f} s left" if job.remaining_s is not None and not job.has_ended else ""
    message = job.error.cause if job.error else job.message if not job.has_ended else ""
    parts = (job.id, job.state, share, job.title, message, rate, left)
    return "  ".join(printable_line(part) for part in parts if part)
