"""OpenAI's route for speech, /v1/audio/speech: a text said aloud, sentence by sentence, as WAV or raw samples."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, NonNegativeInt, StrictStr
from starlette.requests import Request
from typing_extensions import TypedDict

from app.common.wav import wav_header
from app.protocol.errors import RequestError
from app.protocol.speech import MAX_SEED, SpeechSampling
from app.service.api.app_state import app_state, planner_warnings, speaking_model_of
from app.service.api.fields import Body, WithWarnings
from app.service.generation.speech import MAX_CHARACTERS, Saying, say, saying_of
from app.service.http.errors import openai_error
from app.service.http.routing import Router, errors
from app.service.http.streaming import DONE_EVENTS, ByteStream, EventStream
from app.service.models.served_model import ServedModel

router = Router()

_MAX_VOICE_CHARACTERS = 24 << 20  # 16 MiB in Base64
_DEFAULT = SpeechSampling()


class _CustomVoice(Body):
    """A voice by its name."""

    id: Annotated[StrictStr, Field(max_length=_MAX_VOICE_CHARACTERS)]


class SpeechBody(Body):
    """OpenAI's fields, and how the text is sampled. `voice` is the name of a sound in the folder of voices, or a sound
    in a data: URL; `language` is that of the text. Other formats than WAV and PCM (16 bits, little-endian) are
    refused, as is another `speed` than 1."""

    input: Annotated[StrictStr, Field(min_length=1, max_length=MAX_CHARACTERS)]
    model: StrictStr = ""
    voice: Annotated[StrictStr, Field(max_length=_MAX_VOICE_CHARACTERS)] | _CustomVoice = ""
    response_format: StrictStr = "wav"
    stream_format: Literal["audio", "sse"] = "audio"
    speed: Annotated[float, Field(ge=0.25, le=4)] = 1.0
    instructions: StrictStr = ""
    language: Annotated[str, Field(pattern=r"^[A-Za-z]{2,20}$")] | Literal[""] = ""
    temperature: Annotated[float, Field(ge=0, le=2)] = _DEFAULT.temperature
    top_k: Annotated[int, Field(ge=1, le=1000)] = _DEFAULT.top_k
    top_p: Annotated[float, Field(gt=0, le=1)] = _DEFAULT.top_p
    min_p: Annotated[float, Field(ge=0, le=1)] = _DEFAULT.min_p
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] | None = None

    @property
    def voice_name(self) -> str:
        return self.voice if isinstance(self.voice, str) else self.voice.id

    def sampling(self) -> SpeechSampling:
        """Return how the text is sampled. Raises RequestError for what no model here can do."""
        if self.response_format not in ("wav", "pcm"):
            cause = f"response_format {self.response_format[:20]} is not made here."
            raise RequestError(cause, "Ask for wav or pcm; ffmpeg makes any other of them.")
        if self.speed != 1.0:
            raise RequestError("speed is not supported: models speak as fast as they do.", "Leave it out.")
        return SpeechSampling(
            language=self.language,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
        )


class _TokenUsage(TypedDict):
    input_tokens: NonNegativeInt
    output_tokens: NonNegativeInt
    total_tokens: NonNegativeInt


class _AudioEvent(TypedDict):
    """A sentence: `audio` is Base64 of what `response_format` says, a WAV's header before the first; `text` is what is
    said, at `sample_rate`. One that `is_cut` was not ended by the model itself."""

    type: Literal["speech.audio.delta"]
    audio: str
    text: str
    sample_rate: int
    is_cut: bool


class _DoneEvent(WithWarnings):
    """The end: tokens of the text, and frames of sound."""

    type: Literal["speech.audio.done"]
    usage: _TokenUsage


SpeechEvent: TypeAlias = _AudioEvent | _DoneEvent


class WavStream(ByteStream):
    media_type = "audio/wav"


class PcmStream(ByteStream):
    media_type = "audio/pcm"


@router.post("/v1/audio/speech", refusals=errors(404))
@router.post("/audio/speech", refusals=errors(404))
async def speech(request: Request, body: SpeechBody) -> WavStream | PcmStream | EventStream[SpeechEvent]:
    """A text said aloud, each sentence as soon as it is ready."""
    sampling = body.sampling()
    model = await speaking_model_of(request, body.model)
    data_dir = app_state(request).models.settings.data_dir
    saying = saying_of(model, body.input, body.voice_name, sampling, body.seed, data_dir)
    if body.instructions:
        model.record.notices.append(f"instructions has no effect: {model.ref.id} takes none.")
    has_header = body.response_format == "wav"
    if body.stream_format == "sse":
        return EventStream(_events(model, saying, has_header=has_header), openai_error, DONE_EVENTS)
    stream = WavStream if has_header else PcmStream
    return stream(_pieces(model, saying, has_header=has_header), openai_error)


async def _pieces(model: ServedModel, saying: Saying, *, has_header: bool) -> AsyncGenerator[bytes, None]:
    is_whole = len(saying.sentences) == 1  # the length of several is not known when the first one is sent
    async with aclosing(say(model, saying)) as sentences:
        async for said in sentences:
            if has_header:
                yield wav_header(said.sample_rate, len(said.samples) if is_whole else None)
                has_header = False
            yield said.samples


async def _events(model: ServedModel, saying: Saying, *, has_header: bool) -> AsyncGenerator[SpeechEvent, None]:
    async with aclosing(say(model, saying)) as sentences:
        async for said in sentences:
            header = wav_header(said.sample_rate, None) if has_header else b""
            has_header = False
            yield {
                "type": "speech.audio.delta",
                "audio": b64encode(header + said.samples).decode(),
                "text": said.text,
                "sample_rate": said.sample_rate,
                "is_cut": said.is_cut,
            }
    n_input, n_output = model.record.n_prompt_tokens, model.record.n_output_tokens
    usage: _TokenUsage = {"input_tokens": n_input, "output_tokens": n_output, "total_tokens": n_input + n_output}
    yield {"type": "speech.audio.done", "usage": usage, **planner_warnings(model)}
