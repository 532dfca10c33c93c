"""Routes of OpenAI's dialect for sounds: /v1/audio/transcriptions and /v1/audio/translations.

A translation is a transcription in English. llama-server has the first route; the others take its fields too.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, NonNegativeInt, StrictStr
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from typing_extensions import TypedDict

from app.common.subtitles import srt, vtt
from app.protocol.errors import RequestError
from app.protocol.transcript import Segment, Transcribed
from app.service.api.app_state import hearing_model_of, planner_warnings
from app.service.api.fields import Body, WithWarnings
from app.service.generation.transcription import MAX_WINDOW_TOKENS, Wanted, check_wanted, transcribe
from app.service.http.errors import openai_error
from app.service.http.forms import Upload, read_upload
from app.service.http.routing import Router, errors
from app.service.http.streaming import DONE_EVENTS, EventStream, JsonResponse, unless_gone
from app.service.models.served_model import ServedModel

router = Router()

TranscriptFormat: TypeAlias = Literal["json", "text", "srt", "verbose_json", "vtt"]
_SUBTITLES: Mapping[TranscriptFormat, Callable[[Sequence[Segment]], str]] = {"srt": srt, "vtt": vtt}
_MAX_CONTEXT_CHARACTERS = 8000
_Language = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z _-]{0,39}$")]  # it becomes a part of the prompt


class TranscriptionBody(Body):
    """The fields of a form; `file` is the name of the sound in it. `prompt` and `keywords` are what is known of it:
    names, what was said before. `max_tokens` are those of 30 s (llama-server's)."""

    file: Annotated[StrictStr, Field(json_schema_extra={"format": "binary"})]
    model: StrictStr = ""
    language: _Language | Literal[""] = ""
    languages: tuple[_Language, ...] = ()
    prompt: Annotated[str, Field(max_length=_MAX_CONTEXT_CHARACTERS)] = ""
    keywords: tuple[Annotated[str, Field(max_length=100)], ...] = ()
    response_format: TranscriptFormat = "json"
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    timestamp_granularities: tuple[Literal["word", "segment"], ...] = ()
    include: tuple[str, ...] = ()
    stream: bool | None = None
    max_tokens: Annotated[int, Field(ge=1)] = MAX_WINDOW_TOKENS

    def wanted(self, *, translates: bool) -> Wanted:
        """Return what is wanted of the sound. Raises RequestError for what no model here says of one."""
        if "word" in self.timestamp_granularities:
            remedy = 'Ask for ["segment"]: at most 30 s each, cut where nobody speaks.'
            raise RequestError("timestamp_granularities has word, and words have no times here.", remedy)
        if "logprobs" in self.include:
            remedy = "Leave it out; segments of verbose_json have avg_logprob."
            raise RequestError("include has logprobs, which transcripts have none of.", remedy)
        if self.stream and self.response_format in _SUBTITLES:
            remedy = "Leave `stream` out, or ask for verbose_json, which streams segments with their times."
            raise RequestError(f"response_format {self.response_format} is not streamed.", remedy)
        names = f"Names: {', '.join(self.keywords)}." if self.keywords else ""
        return Wanted(
            translates=translates,
            context=" ".join(filter(None, (self.prompt, names))),
            language=self.language or (self.languages[0] if len(self.languages) == 1 else ""),
            temperature=self.temperature,
            max_tokens=self.max_tokens,
            has_details=self.response_format == "verbose_json",
        )


class _TokenUsage(TypedDict):
    type: Literal["tokens"]
    input_tokens: NonNegativeInt
    output_tokens: NonNegativeInt
    total_tokens: NonNegativeInt


class _DurationUsage(TypedDict):
    type: Literal["duration"]
    seconds: float


class _Segment(TypedDict):
    """OpenAI's segment of Whisper. `seek` is always 0, and `no_speech_prob` too: where nobody speaks is no segment."""

    id: NonNegativeInt
    seek: Literal[0]
    start: float
    end: float
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float


class Transcription(WithWarnings):
    text: str
    usage: _TokenUsage


class VerboseTranscription(WithWarnings):
    """`language` is the one that was given, or that the model named, else empty."""

    task: Literal["transcribe", "translate"]
    language: str
    duration: float
    text: str
    segments: list[_Segment]
    usage: _DurationUsage


class _DeltaEvent(TypedDict):
    type: Literal["transcript.text.delta"]
    delta: str


class _SegmentEvent(TypedDict):
    """A segment, where the format is verbose_json. Speakers are not told apart; `duration` is how long the sound says
    that it is, 0 where it does not."""

    type: Literal["transcript.text.segment"]
    id: str
    start: float
    end: float
    text: str
    speaker: Literal[""]
    duration: float


class _DoneEvent(WithWarnings):
    """The whole text; `language` and `duration` are those of verbose_json."""

    type: Literal["transcript.text.done"]
    text: str
    language: str
    duration: float
    usage: _TokenUsage


TranscriptionEvent: TypeAlias = _DeltaEvent | _SegmentEvent | _DoneEvent
TranscriptionResponse: TypeAlias = (
    JsonResponse[Transcription | VerboseTranscription] | PlainTextResponse | EventStream[TranscriptionEvent]
)


@router.post("/v1/audio/transcriptions", refusals=errors(404), form=TranscriptionBody)
@router.post("/audio/transcriptions", refusals=errors(404), form=TranscriptionBody)
async def transcriptions(request: Request) -> TranscriptionResponse:
    """What is said in a sound, in the language that is spoken."""
    return await _respond(request, translates=False)


@router.post("/v1/audio/translations", refusals=errors(404), form=TranscriptionBody)
@router.post("/audio/translations", refusals=errors(404), form=TranscriptionBody)
async def translations(request: Request) -> TranscriptionResponse:
    """What is said in a sound, in English."""
    return await _respond(request, translates=True)


async def _respond(request: Request, *, translates: bool) -> TranscriptionResponse:
    upload = await read_upload(request, TranscriptionBody)
    form, wanted = upload.body.response_format, upload.body.wanted(translates=translates)
    model = await hearing_model_of(request, upload.body.model)
    check_wanted(model, wanted)
    if upload.body.stream:
        return EventStream(_events(model, upload, wanted), openai_error, DONE_EVENTS)
    segments, whole = await unless_gone(request.receive, _collected(model, upload, wanted))
    if form in _SUBTITLES:
        return PlainTextResponse(_SUBTITLES[form](segments))
    if form == "text":
        return PlainTextResponse(f"{whole.text}\n")
    if form == "json":
        return JsonResponse({"text": whole.text, "usage": _usage(whole), **planner_warnings(model)})
    verbose: VerboseTranscription = {
        "task": "translate" if translates else "transcribe",
        "language": whole.language,
        "duration": whole.length_s,
        "text": whole.text,
        "segments": [_segment(segment, wanted.temperature) for segment in segments],
        "usage": {"type": "duration", "seconds": whole.length_s},
        **planner_warnings(model),
    }
    return JsonResponse(verbose)


async def _collected(
    model: ServedModel, upload: Upload[TranscriptionBody], wanted: Wanted
) -> tuple[list[Segment], Transcribed]:
    segments: list[Segment] = []
    whole: Transcribed | None = None
    async with aclosing(transcribe(model, upload.file, wanted)) as events:
        async for event in events:
            if isinstance(event, Segment):
                segments.append(event)
            elif isinstance(event, Transcribed):
                whole = event
    assert whole is not None, "a transcript ends with the whole"
    return segments, whole


async def _events(
    model: ServedModel, upload: Upload[TranscriptionBody], wanted: Wanted
) -> AsyncGenerator[TranscriptionEvent, None]:
    is_verbose = upload.body.response_format == "verbose_json"
    async with aclosing(transcribe(model, upload.file, wanted)) as events:
        async for event in events:
            if isinstance(event, str):
                yield {"type": "transcript.text.delta", "delta": event}
            elif isinstance(event, Transcribed):
                yield {
                    "type": "transcript.text.done",
                    "text": event.text,
                    "language": event.language,
                    "duration": event.length_s,
                    "usage": _usage(event),
                    **planner_warnings(model),
                }
            elif is_verbose:
                yield {
                    "type": "transcript.text.segment",
                    "id": str(event.index),
                    "start": event.begin_s,
                    "end": event.end_s,
                    "text": event.text,
                    "speaker": "",
                    "duration": event.length_s,
                }


def _usage(whole: Transcribed) -> _TokenUsage:
    return {
        "type": "tokens",
        "input_tokens": whole.n_prompt_tokens,
        "output_tokens": whole.n_output_tokens,
        "total_tokens": whole.n_prompt_tokens + whole.n_output_tokens,
    }


def _segment(segment: Segment, temperature: float) -> _Segment:
    data = segment.text.encode()
    return {
        "id": segment.index,
        "seek": 0,
        "start": segment.begin_s,
        "end": segment.end_s,
        "text": segment.text,
        "tokens": list(segment.tokens),
        "temperature": temperature,
        "avg_logprob": segment.mean_logprob,
        "compression_ratio": len(data) / len(zlib.compress(data)),  # as Whisper computes it
        "no_speech_prob": 0.0,
    }
