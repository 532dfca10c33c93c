"""`localllm transcribe`: what is said in sounds, as text or subtitles."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from app.cli.options import LOAD_ANYWAY, complete_file, complete_model, option, options, setting_options
from app.common.subtitles import srt, vtt
from app.common.terminal import printable
from app.protocol.errors import RequestError
from app.protocol.transcript import Segment, Transcribed, TranscriptEvent
from quantizer.system.errors import UsageError
from quantizer.system.files import explained, write_atomically

_TEXT, _JSON = "text", "json"
_FORMAT_OF_ENDING = {".txt": _TEXT, ".srt": "srt", ".vtt": "vtt", ".json": _JSON}
_ENDING_OF_FORMAT = {name: ending for ending, name in _FORMAT_OF_ENDING.items()}


@dataclass(frozen=True, slots=True)
class _Part:
    begin_s: float
    end_s: float
    text: str


@dataclass(frozen=True, slots=True)
class _Transcript:
    """What is said in a file, as JSON has it."""

    file: str
    language: str
    length_s: float
    text: str
    segments: Sequence[_Part]


_WRITERS: Mapping[str, Callable[[_Transcript], str]] = {
    _TEXT: lambda transcript: "".join(f"{part.text}\n" for part in transcript.segments),
    "srt": lambda transcript: srt(transcript.segments),
    "vtt": lambda transcript: vtt(transcript.segments),
    _JSON: lambda transcript: f"{json.dumps(asdict(transcript), ensure_ascii=False)}\n",
}


@click.command(epilog="Example: localllm transcribe talk.mp3 -o talk.srt")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(), shell_complete=complete_file)
@click.option("-o", "--output", type=click.Path(), help="Output file, or a folder for several.  [default: stdout]")
@click.option(
    "--format",
    "format_name",
    type=click.Choice(list(_WRITERS), case_sensitive=False),
    help="Format.  [default: by the ending of -o, else text]",
)
@click.option("-m", "--model", help="A model that hears.", shell_complete=complete_model)
@click.option("--language", help="Language that is spoken, such as en.  [default: the model recognises it]")
@click.option("--translate", is_flag=True, help="Translate into English.")
@click.option("--prompt", help="What is known of the sound, such as names.")
@setting_options("ctx", "threads", "host", "port", "api_key")
@option("assume_yes", help=LOAD_ANYWAY)
@options("wants_json")
def transcribe(
    files: tuple[str, ...],
    output: str | None,
    format_name: str | None,
    model: str | None,
    language: str | None,
    translate: bool,
    prompt: str | None,
    assume_yes: bool,
    wants_json: bool,
    **flags: object,
) -> None:
    """Write down what is said in sounds: WAV, MP3, FLAC or Ogg Vorbis of any length.

    Text is printed as it is recognised, a line for each part of up to 30 seconds. The ending of -o chooses the format:
    .txt, .srt and .vtt (subtitles), .json. An output file is replaced.

    It needs a model that hears, such as Qwen3-ASR: localllm pull ggml-org/Qwen3-ASR-0.6B-GGUF
    """
    from app.cli.resources import load_named, resolve_settings, show_kept, show_notices

    form = _JSON if wants_json else format_name or (_format_of(output) if output else _TEXT)
    is_folder = bool(output) and Path(output or "").is_dir()
    if output and len(files) > 1 and not is_folder:
        raise UsageError(f"{output} is not a folder, and there are several sounds.", "Name a folder, or one sound.")
    ending = _ENDING_OF_FORMAT[form]
    places = [Path(output, f"{Path(file).stem}{ending}") if is_folder else Path(output) for file in files if output]
    settings = resolve_settings(model, {**flags, "connect": None}, assume_yes=assume_yes)
    fields = {name: value for name, value in (("language", language), ("prompt", prompt)) if value}

    async def transcribe_all() -> None:
        from app.client.launcher import open_service

        async with open_service(settings, keeps=True) as client:
            show_notices(client)
            model_id = await load_named(client, model, settings)
            for number, file in enumerate(files):
                prints = form == _TEXT and not places
                events = client.transcribe(Path(file), model_id, fields, translates=translate)
                written = _WRITERS[form](await _transcribed(Path(file), events, prints=prints))
                if places:
                    with explained(f"{places[number]} cannot be written", "Choose another place with -o."):
                        write_atomically(places[number], written, sync=False)
                elif not prints:
                    click.echo(printable(written), nl=False)
            show_kept(client, wants_json=form == _JSON)

    asyncio.run(transcribe_all())


def _format_of(output: str) -> str:
    """Return the format that the ending of an output file means. Raises UsageError for another ending."""
    path = Path(output)
    if path.is_dir():
        return _TEXT
    if found := _FORMAT_OF_ENDING.get(path.suffix.lower()):
        return found
    remedy = f"End it in {', '.join(_FORMAT_OF_ENDING)}, or say --format."
    raise UsageError(f"The ending of {output} is no format of transcripts.", remedy)


async def _transcribed(path: Path, events: AsyncGenerator[TranscriptEvent, None], *, prints: bool) -> _Transcript:
    """Return what is said in a file, while a bar shows how many of its seconds are done."""
    from app.cli.output.progress import Shown

    parts: list[_Part] = []
    whole: Transcribed | None = None
    try:
        with Shown(f"{path.name}: seconds", None) as shown:
            async with aclosing(events):
                async for event in events:
                    if isinstance(event, Segment):
                        parts.append(_Part(event.begin_s, event.end_s, event.text))
                        n_total = round(max(event.length_s, event.end_s)) if event.length_s else None
                        shown.bar.update(n_done=round(event.end_s), n_total=n_total)
                        if prints:
                            click.echo(printable(event.text))
                    elif isinstance(event, Transcribed):
                        whole = event
                        for warning in event.warnings:
                            shown.bar.note(warning)
    except RequestError as error:
        raise RequestError(f"{path.name}: {error.cause}", error.remedy) from error
    assert whole is not None, "a transcript ends with the whole"
    return _Transcript(str(path), whole.language, whole.length_s, whole.text, parts)
