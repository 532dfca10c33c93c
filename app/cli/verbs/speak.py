"""`localllm speak`: a text said aloud, into a WAV file or raw samples."""

from __future__ import annotations

import asyncio
import json
import sys
from base64 import b64encode
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from app.cli.options import LOAD_ANYWAY, complete_file, complete_model, option, options, setting_options
from app.common.media_formats import MediaKind, format_of
from app.common.terminal import printable_line
from app.common.wav import wav_header
from app.protocol.speech import MAX_SEED, MAX_VOICE_BYTES, Said
from quantizer.system.errors import UsageError
from quantizer.system.files import explained, open_regular, write_atomically

_STDIN = _STDOUT = "-"
_RAW = ".pcm"
_ENDINGS = (".wav", _RAW)


@dataclass(frozen=True, slots=True)
class _Speech:
    """What was said, as JSON has it."""

    file: str
    length_s: float
    sample_rate: int
    sentences: list[str]


@click.command(epilog='Example: localllm speak "Dinner is ready." -o dinner.wav')
@click.argument("text")
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(),
    shell_complete=complete_file,
    help="Output file, .wav or .pcm (raw samples); - for WAV on stdout.",
)
@click.option("--voice", default="", help="A sound file of a few seconds, or a name in the folder of voices.")
@click.option("-m", "--model", help="A model that speaks.", shell_complete=complete_model)
@click.option("--language", help="Language of the text, such as en.  [default: en]")
@click.option("--seed", type=click.IntRange(0, MAX_SEED), help="Random seed.")
@setting_options("threads", "host", "port", "api_key")
@option("assume_yes", help=LOAD_ANYWAY)
@options("wants_json")
def speak(
    text: str,
    output: str,
    voice: str,
    model: str | None,
    language: str | None,
    seed: int | None,
    assume_yes: bool,
    wants_json: bool,
    **flags: object,
) -> None:
    """Say TEXT aloud (- for stdin), into a sound file.

    A text is said sentence by sentence. An output file is replaced once all of it is said; Ctrl-C leaves it as it was.

    It needs a model that speaks, Qwen3-TTS or Pocket-TTS with its mmproj file:
    localllm pull ggml-org/Qwen3-TTS-12Hz-1.7B-Base-GGUF
    """
    from app.cli.prompts import piped_text
    from app.cli.resources import load_named, resolve_settings, show_kept, show_notices

    if output != _STDOUT and Path(output).suffix.lower() not in _ENDINGS:
        raise UsageError(f"The ending of {output} is no format of speech.", "End it in .wav or .pcm.")
    if output == _STDOUT and wants_json:
        raise UsageError("stdout cannot have both the sound and JSON.", "Name a file with -o.")
    if text == _STDIN:
        text = piped_text()
    if not text.strip():
        raise UsageError("There is no text to say.", "Give it in quotes, or pipe it in with -.")
    heard = _voice(voice)
    settings = resolve_settings(model, {**flags, "connect": None}, assume_yes=assume_yes)
    given = {"language": language, "seed": seed}
    fields = {name: value for name, value in given.items() if value is not None}

    async def speak_all() -> None:
        from app.client.launcher import open_service

        async with open_service(settings, keeps=True) as client:
            show_notices(client)
            model_id = await load_named(client, model, settings)
            said = client.speak(text, model_id, heard, fields)
            sentences = await (_piped(said) if output == _STDOUT else _collected(said))
            if output != _STDOUT:
                speech = _write(Path(output), sentences)
                if wants_json:
                    click.echo(json.dumps(asdict(speech), ensure_ascii=False))
                else:
                    click.echo(f"{output}: {speech.length_s:.1f} s", err=True)
            show_kept(client, wants_json=wants_json)

    asyncio.run(speak_all())


def _voice(voice: str) -> str:
    """Return a voice as the service takes it: a file's content, as the service may be of another machine, or a name."""
    path = Path(voice)
    if not voice or not (path.suffix or path.is_file()):
        return voice
    with explained(f"The voice {voice} cannot be read", "Check the path.", UsageError), open_regular(path) as file:
        data = file.read(MAX_VOICE_BYTES + 1)
    if len(data) > MAX_VOICE_BYTES:
        raise UsageError(f"{voice} has more than 16 MiB.", "Cut it: its first 30 seconds count.")
    form = format_of(data)
    if form.kind is not MediaKind.SOUND:
        raise UsageError(f"{voice} is a {form.kind}.", "Name a sound of a few seconds.")
    return f"data:{form.mime_type};base64,{b64encode(data).decode()}"


async def _collected(sentences: AsyncGenerator[Said, None]) -> list[Said]:
    """Return all of what is said, while a bar shows how many seconds there are."""
    from app.cli.output.progress import Shown

    found: list[Said] = []
    with Shown("Seconds said", None) as shown:
        async with aclosing(sentences):
            async for said in sentences:
                found.append(said)
                if said.is_cut:
                    shown.bar.note(_told_cut(said))
                shown.bar.update(n_done=round(sum(each.length_s for each in found)))
    return found


async def _piped(sentences: AsyncGenerator[Said, None]) -> list[Said]:
    """Write what is said to stdout as it comes, as WAV of unknown length."""
    has_header = False
    async with aclosing(sentences):
        async for said in sentences:
            header = b"" if has_header else wav_header(said.sample_rate, None)
            has_header = True
            sys.stdout.buffer.write(header + said.samples)
            sys.stdout.buffer.flush()
            if said.is_cut:
                click.echo(_told_cut(said), err=True)
    return []


def _told_cut(said: Said) -> str:
    return printable_line(f"Cut after {said.length_s:.0f} s, for the model did not end it: {said.text}")


def _write(output: Path, sentences: list[Said]) -> _Speech:
    n_bytes, rate = sum(len(said.samples) for said in sentences), sentences[0].sample_rate
    header = b"" if output.suffix.lower() == _RAW else wav_header(rate, n_bytes)
    with explained(f"{output} cannot be written", "Choose another place with -o."):
        write_atomically(output, (header, *(said.samples for said in sentences)), sync=False)
    length_s = sum(said.length_s for said in sentences)
    return _Speech(str(output), round(length_s, 3), rate, [said.text for said in sentences])
