"""`localllm quantize --size` and `--kld`: find the mix of types that meets a target, before anything is written.

Owns the order of things: matrix, sensitivities, search, trials. What was measured is kept in the cache.
"""

from __future__ import annotations

import hashlib
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from app.cli.auto_imatrix import AUTO, automatic_imatrix, calibration_key
from app.cli.imatrix import CALIBRATION
from app.cli.progress import with_progress
from app.cli.runnable import Runnable, written_meanwhile
from app.cli.texts import read_text, shipped
from app.cli.windows import n_ctx_for

if TYPE_CHECKING:
    from app.cli.mix_target import Target
    from quantizer.job import JobRequest
    from quantizer.mix_search import Mix, MixSearch
    from quantizer.sensitivity import Sensitivity
    from quantizer.sources import SourceModel

__all__ = ["Found", "find_mix"]

_METHOD = 1  # of measuring sensitivities: another one forgets what was kept


@dataclass(frozen=True, slots=True)
class Found:
    """A mix, the search that it comes from, and the request that writes it; `kld` where it was measured."""

    mix: Mix
    search: MixSearch
    request: JobRequest
    kld: float | None


def find_mix(request: JobRequest, target: Target, n_threads: int) -> Found:
    """Return the mix that `request` should write to meet `target`. `n_threads` 0 takes the default.

    Raises UserError, UsageError with the range that can be had where the target is beyond it.
    """
    from quantizer.kld_target import mix_for_kld
    from quantizer.mix_search import MixSearch, check_reachable, check_unquantized
    from quantizer.output import check_output
    from quantizer.plan import open_source

    source = Path(request.source)
    model = open_source(source)
    check_unquantized(model)
    check_output(Path(request.output), [], model.inputs)  # not only after measuring
    if target.n_bytes:
        check_reachable(model, request.options(), target.n_bytes)
    with Runnable(source, _lossless(model), n_threads) as running:
        is_named = request.imatrix not in ("", AUTO)
        imatrix = Path(request.imatrix) if is_named else automatic_imatrix(source, running, n_threads)
        request = replace(request, imatrix=str(imatrix))
        search = MixSearch(model, request.options(), _sensitivities(source, running, imatrix, n_threads))
        if target.n_bytes:
            mix, kld = search.within_bytes(target.n_bytes), None
        else:
            trials = _Trials(request, running, n_threads)
            measured = mix_for_kld(search, target.kld, trials.measure)
            mix, kld = measured.mix, measured.kld
    return Found(mix, search, _with_mix(request, mix), kld)


class _Trials:
    """Mixes that are written, judged on the text that ships for it, and removed."""

    def __init__(self, request: JobRequest, running: Runnable, n_threads: int) -> None:
        self._request = replace(request, source=str(running.path), max_shard_bytes=0, keeps_split=False)
        self._reference = running.path
        self._n_threads = n_threads
        self._n_done = 0

    def measure(self, mix: Mix) -> float:
        """Return how far `mix` diverges from the original. Raises UserError."""
        from app.engine.judging import JudgeRequest, judged
        from quantizer.gate import admit

        self._n_done += 1
        with ExitStack() as owned:
            written = written_meanwhile(_with_mix(self._request, mix), f"for trial {self._n_done}", owned)
            models = (str(written), str(self._reference))
            n_ctx = n_ctx_for(admit(written), 0)
            request = JudgeRequest(models, read_text(shipped("evaluation.txt")), n_ctx, 0, self._n_threads)
            verdict = judged(request, lambda steps: with_progress(f"Judging trial {self._n_done}", steps))
        assert verdict.judgement.comparison is not None
        kld = verdict.judgement.comparison.mean_kld.value
        click.echo(f"Trial {self._n_done}: {mix.n_bytes:,} bytes diverge by {kld:.3g}.", err=True)
        return kld


def _with_mix(request: JobRequest, mix: Mix) -> JobRequest:
    return replace(request, file_type=mix.file_type.name, mix=mix.types)


def _sensitivities(source: Path, running: Runnable, imatrix: Path, n_threads: int) -> dict[str, Sensitivity]:
    """Return how sensitive each tensor is, measured now unless that is kept already."""
    from app.engine.sensitivity import SensitivityRequest, kept_sensitivities, measured_sensitivities
    from app.settings import load_settings
    from quantizer.gate import admit

    def measure() -> dict[str, Sensitivity]:
        n_ctx = n_ctx_for(admit(running.path), 0)
        request = SensitivityRequest(str(running.path), str(imatrix), read_text(CALIBRATION), n_ctx, n_threads)
        return measured_sensitivities(request, lambda steps: with_progress("Measuring tensors", steps))

    key = calibration_key(source, _METHOD, hashlib.sha256(imatrix.read_bytes()).hexdigest())
    return kept_sensitivities(load_settings().cache_dir / "sensitivity" / f"{key}.json", measure)


def _lossless(model: SourceModel) -> str:
    """Return the file type in which a checkpoint runs as it is."""
    return "BF16" if any(tensor.stored.name == "BF16" for tensor in model.tensors) else "F16"
