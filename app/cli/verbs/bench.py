"""`localllm bench`: how fast a model answers here, alone or beside another model or server."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import click

from app.cli.options import options, options_of
from app.cli.output.format import print_json, print_lines, print_table
from app.cli.resources import requested_planning_context
from app.common.terminal import printable
from app.options.jobs import BenchOptions
from app.protocol.errors import ServiceError
from app.settings.settings import Settings, load_settings
from quantizer.system.errors import UsageError

if TYPE_CHECKING:
    from app.bench.measurement import Figure, Results, Roofline
    from app.bench.target import RemoteServer, Target


_Predicted: TypeAlias = Mapping[tuple[str, str], float]


@dataclass(frozen=True, slots=True)
class _Job:
    """The options of a benchmark. All that are compared get the same text, made from `seed`."""

    settings: Settings
    works: tuple[str, ...]
    n_runs: int
    seed: int


@click.command(epilog="Example: localllm bench qwen3:0.6b-q8_0 --against http://127.0.0.1:8080")
@options_of(BenchOptions)
@click.option("--against", metavar="OTHER", help="Another model, or the URL of an OpenAI-compatible server.")
@click.option("--against-model", default="", metavar="NAME", help="Model of that server.  [default: its first]")
@click.option("--against-api-key", default="", metavar="KEY", help="API key of that server.")
@options("seed", "wants_json")
def bench(
    options: BenchOptions,
    *,
    against: str | None,
    against_model: str,
    against_api_key: str,
    seed: int | None,
    wants_json: bool,
) -> None:
    """Measure the speed of MODEL (guide, a path to a GGUF, or a name in the library) on this machine.

    Workloads: decode (tok/s at several depths), prefill (tok/s of new prompts), turns (time to first token of a new
    chat, a next turn, a resumed chat and a shared system prompt), clients (tok/s of 1, 4 and 8 at once), edit (tok/s
    of answers that repeat their prompt). MODEL runs in its own service; OTHER is measured after it with the same text.
    """
    from app.bench.measurement import as_json, comparison, reasons, table
    from app.bench.target import RemoteServer
    from app.bench.workloads import WORKLOADS
    from app.client.remote_engine import parse_address

    settings = load_settings({"ctx": options.ctx, "threads": options.threads})
    works = tuple(options.only.split(",")) if options.only else tuple(WORKLOADS)
    if unknown := [name for name in works if name not in WORKLOADS]:
        raise UsageError(f"There is no workload {', '.join(unknown)}.", f"Known: {', '.join(WORKLOADS)}.")
    job = _Job(settings, works, options.runs, secrets.randbits(32) if seed is None else seed)
    url = parse_address(against or "")
    other = RemoteServer(url, against_model, against_api_key) if url else against
    if not url and (against_model or against_api_key):
        raise UsageError("--against-model and --against-api-key are for a server.", "Give its URL with --against.")
    wanted: list[str | RemoteServer] = [options.model] if other is None else [options.model, other]
    expected = [_expected(item, job.settings) if isinstance(item, str) else (None, {}) for item in wanted]
    read_bytes, predicted = zip(*expected, strict=True)
    measured = asyncio.run(_measure(wanted, predicted, job))
    rooflines = _rooflines(measured, read_bytes, settings)
    if wants_json:
        print_json(as_json(measured, rooflines, job.seed))
        return
    print_table(table(measured[0]) if len(measured) == 1 else comparison(*measured))
    print_lines([*(reason for results in measured for reason in reasons(results)), *map(str, rooflines)])


def _expected(model: str, settings: Settings) -> tuple[int, _Predicted]:
    """Return the bytes of weights that a token of `model` reads, and the planner's prediction by workload and case.
    Raises ModelFileError for an invalid model."""
    from app.bench.workloads import DEPTHS, PREFILL_TOKENS, decode_case, prefill_case
    from app.library.local.resolve import resolve
    from offload.footprint.model import PlannedModel
    from offload.footprint.weights import weight_bytes_per_token
    from offload.plan import predict

    candidate, here = PlannedModel.read(resolve(model, settings).path), requested_planning_context(settings)
    found = predict(candidate, here.requested, here.machine, here.rates, DEPTHS)
    decodes = {("decode", decode_case(depth)): tps for depth, tps in found.decode_tps.items()}
    prefills = {("prefill", prefill_case(n_tokens)): found.prefill_tps for n_tokens in PREFILL_TOKENS}
    predicted = decodes | {key: tps for key, tps in prefills.items() if tps is not None}
    return weight_bytes_per_token(candidate.header, candidate.tensors), predicted


async def _measure(wanted: list[str | RemoteServer], predicted: Sequence[_Predicted], job: _Job) -> list[Results]:
    """Return the results of each model and server of `wanted`, one after the other."""
    from app.bench.target import open_model, open_server
    from app.cli.output.answer import LoadingLine

    measured = []
    for item, known in zip(wanted, predicted, strict=True):
        opened = open_model(item, job.settings, LoadingLine().show) if isinstance(item, str) else open_server(item)
        async with opened as target:
            measured.append((await _measure_target(target, job)).with_predictions(known))
    return measured


async def _measure_target(target: Target, job: _Job) -> Results:
    from app.bench.measurement import Results, line
    from app.bench.workloads import WORKLOADS, Bench, measured_text, run_workloads
    from app.cli.output.progress import Meter

    _tell(f"{target.label} ({target.model}), {job.n_runs} runs of each, seed {job.seed}")
    measuring = Bench(target.client, await measured_text(target.client, job.seed), job.n_runs, target.n_ctx)
    figures: list[Figure] = []
    with Meter("Measuring", len(job.works)) as meter:

        def report(figure: Figure) -> None:
            _tell(f"  {line(figure)}")
            meter.bar.update(title=line(figure))

        for work in job.works:
            figures += await run_workloads(WORKLOADS, (work,), measuring, report)
            meter.advance()
    results = Results.of(target.label, target.model, figures)
    if not results.measurements:
        raise ServiceError(f"Nothing could be measured of {target.label}.", results.unmeasured[0].reason)
    return results


def _rooflines(measured: list[Results], read_bytes: Sequence[int | None], settings: Settings) -> list[Roofline]:
    """Return the roofline of each model, from the memory bandwidth measured now that nothing else runs."""
    from app.bench.measurement import roofline_of, shallowest_decode
    from offload.devices.bandwidth import measure_read_bandwidth
    from offload.devices.host import default_threads

    found = [
        (results.label, decode, n_bytes)
        for results, n_bytes in zip(measured, read_bytes, strict=True)
        if n_bytes is not None and (decode := shallowest_decode(results)) is not None
    ]
    if not found:
        return []
    _tell("memory bandwidth")
    bandwidth = measure_read_bandwidth(settings.threads or default_threads())
    return [roofline_of(label, decode, n_bytes, bandwidth) for label, decode, n_bytes in found]


def _tell(text: str) -> None:
    click.echo(printable(text), err=True)
