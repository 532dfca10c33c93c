"""`localllm verify`: verify the checksums of models."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from app.cli.options import complete_model, options
from app.cli.output.format import print_json
from app.cli.resources import open_index
from app.common.terminal import printable_line
from app.settings.settings import load_settings

if TYPE_CHECKING:
    from app.library.local.verification import VerificationResult


@click.command(epilog="Example: localllm verify qwen3:0.6b-q8_0")
@click.argument("models", nargs=-1, metavar="[MODEL]...", shell_complete=complete_model)
@click.option("--record", "is_recording", is_flag=True, help="Record the current hashes as correct.")
@options("wants_json")
def verify(models: tuple[str, ...], *, is_recording: bool, wants_json: bool) -> None:
    """Verify the SHA-256 of each MODEL, or of all models in the library, and of their projectors.

    Hashes are recorded when a model is downloaded, imported or first verified. Exits with 1 when a model is damaged.
    """
    from app.cli.output.progress import Meter
    from app.library.local.resolve import available, resolve
    from app.library.local.verification import verified_files
    from app.library.local.verification import verify as verdict_of

    settings = load_settings()
    refs = [resolve(name, settings) for name in models] or available(settings)
    files = (path for ref in refs for path in verified_files(ref.path))
    n_bytes = sum(path.stat().st_size for path in files if path.exists())
    verdicts = []
    with open_index(settings.cache_dir) as index, Meter("Reading", n_bytes, is_bytes=True) as meter:
        for ref in refs:
            verdicts.append(verdict_of(ref, index, meter.advance, is_recording=is_recording))
            if not wants_json:
                click.echo(_line(verdicts[-1]))
    if wants_json:
        print_json({"models": [_as_json(verdict) for verdict in verdicts]})
    if any(verdict.state == "damaged" for verdict in verdicts):
        raise click.exceptions.Exit(1)


def _line(verdict: VerificationResult) -> str:
    words = ": ".join(filter(None, (verdict.state, printable_line(verdict.reason))))
    return f"{printable_line(verdict.ref.id)}  {words}"


def _as_json(verdict: VerificationResult) -> dict[str, object]:
    fields = {name: value for name, value in asdict(verdict).items() if name != "ref"}
    return {"id": verdict.ref.id, "path": str(verdict.ref.path), **fields}
