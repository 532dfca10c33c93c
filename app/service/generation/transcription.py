"""What is said in a sound, by a model that hears: how each kind of model is asked for it, window by window.

A window is a request of its own: whatever the length of the sound, the context has to hold 30 s of it.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import BinaryIO
from uuid import uuid4

from app.common.media_formats import MediaKind
from app.engine.request import IN_MEMORY, FinishReason, Request, SamplingParams
from app.protocol.chat import Message
from app.protocol.errors import RequestError
from app.protocol.transcript import Segment, Transcribed, TranscriptEvent
from app.service.generation.chat import ChatTurn, chat_generation
from app.service.generation.generation import Generation
from app.service.generation.media import Medium, PromptMedia
from app.service.generation.sound_reader import Window, windows_of
from app.service.generation.thinking import Thinking
from app.service.generation.transcript import Transcript
from app.service.models.model_file import ModelFile
from app.service.models.served_model import ServedModel

MAX_WINDOW_TOKENS = 1024  # of text for 30 s, where a request says nothing; the fastest speech has 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """How a kind of model is asked. Its message is a text and the sound (`is_sound_first`: in the other order), behind
    the instructions `system`. {context} is what the client knows of the sound, {language} that of its speech; where no
    text has them, the model takes none. An empty `translate` is a model that cannot.

    The answer begins with `begin`, or with `begin_in` where the language is known, as the model was trained to. One
    that begins its answer with the language by itself marks the text behind it by `text_tag`.
    """

    system: str = ""
    transcribe: str
    translate: str = ""
    context: str = ""
    language: str = ""
    is_sound_first: bool = False
    begin: str = ""
    begin_in: str = ""
    text_tag: str = ""

    @property
    def takes_context(self) -> bool:
        return "{context}" in self.context + self.system

    @property
    def takes_language(self) -> bool:
        return "{language}" in self.language + self.begin_in


# Any model that follows instructions. Source of the words for transcription and language: llama-server,
# `common_chat_get_asr_prompt` and `convert_transcriptions_to_chatcmpl` as vendored in llama-cpp-python 0.3.36.
ANY_MODEL = Asking(
    transcribe="Transcribe audio to text",
    translate="Translate audio to English text",
    context="\n\nWhat is known about it: {context}\n\n",
    language=" (language: {language})",
)
# By the kind of the projector (clip.audio.projector_type).
_ASKING: Mapping[str, Asking] = {
    # QwenLM/Qwen3-ASR and vllm/model_executor/models/qwen3_asr.py@vllm: the context is the system message, the answer
    # begins with "language English<asr_text>"
    "qwen3a": Asking(
        system="{context}", transcribe="", begin_in="language {language}<asr_text>", text_tag="<asr_text>"
    ),
    # `_encode_instruct_transcription`@mistral-common; a translation is a question like any other
    "voxtral": Asking(
        transcribe="",
        translate=ANY_MODEL.translate,
        begin="[TRANSCRIBE]",
        begin_in="lang:{language}[TRANSCRIBE]",
    ),
    # llama-server, where its template is that of LFM2
    "lfm2a": Asking(system="Perform ASR.", transcribe=""),
    # vllm/model_executor/models/granite_speech.py@vllm
    "granite_speech": Asking(
        transcribe="can you transcribe the speech into a written format?",
        translate="translate the speech to English",
        is_sound_first=True,
    ),
    # `default_transcription_prompt` of GlmAsrProcessor@transformers
    "glma": Asking(
        transcribe="Please transcribe this audio into text",
        translate="Please translate this audio into English text",
        is_sound_first=True,
    ),
}
# The names by which Qwen3-ASR calls languages; source: docs/source/en/model_doc/qwen3_asr.md@transformers.
_LANGUAGES: Mapping[str, str] = dict(
    re.findall(
        r"(\w+):(\w+)",
        "zh:Chinese en:English yue:Cantonese ar:Arabic de:German fr:French es:Spanish pt:Portuguese id:Indonesian "
        "it:Italian ko:Korean ru:Russian th:Thai vi:Vietnamese ja:Japanese tr:Turkish hi:Hindi ms:Malay nl:Dutch "
        "sv:Swedish da:Danish fi:Finnish pl:Polish cs:Czech fil:Filipino fa:Persian el:Greek hu:Hungarian "
        "mk:Macedonian ro:Romanian",
    )
)


def asking_of(file: ModelFile) -> Asking:
    """Return how the model of `file`, which hears, is asked."""
    projector = file.projector.projector
    kind = projector.audio.kind if projector is not None and projector.audio is not None else ""
    if kind == "qwen3a" and file.sees:  # Qwen 3 Omni, which has the encoder of Qwen3-ASR and follows instructions
        return ANY_MODEL
    return _ASKING.get(kind, ANY_MODEL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is wanted of a sound: its text in its own language, or where it `translates` in English. `context` is what
    the client knows of it, names say; `language` that of its speech, as ISO 639 or in English. A window has at most
    `max_tokens` of text. With `has_details` segments have their tokens and probabilities."""

    translates: bool = False
    context: str = ""
    language: str = ""
    temperature: float = 0.0
    max_tokens: int = MAX_WINDOW_TOKENS
    has_details: bool = False


def check_wanted(model: ServedModel, wanted: Wanted) -> None:
    """Note what of `wanted` has no effect. Raises RequestError for a translation by a model that makes none."""
    asking = asking_of(model.file)
    if wanted.translates and not asking.translate:
        remedy = "Transcribe it, and have another model translate the text; or name a model that follows instructions."
        raise RequestError(f"{model.ref.id} writes down what is said, and does not translate.", remedy)
    for name, value, is_taken in (
        ("prompt", wanted.context, asking.takes_context),
        ("language", wanted.language, asking.takes_language),
    ):
        if value and not is_taken:
            model.record.notices.append(f"{name} has no effect: {model.ref.id} takes none.")


async def transcribe(model: ServedModel, file: BinaryIO, wanted: Wanted) -> AsyncGenerator[TranscriptEvent, None]:
    """Yield what `model` hears in the sound of `file`. Closing the generator ends the work at once. Raises RequestError
    for a file that is no sound, and the errors of a generation."""
    heard = _Heard(model, wanted)
    async with aclosing(windows_of(file)) as windows:
        async for window in windows:
            async with aclosing(heard.hear(window)) as events:
                async for event in events:
                    yield event
    for event in heard.end():
        yield event


class _Heard:
    """What was heard so far."""

    def __init__(self, model: ServedModel, wanted: Wanted) -> None:
        self._model, self._wanted, self._asking = model, wanted, asking_of(model.file)
        self._transcript = Transcript()
        self._windows: list[Segment] = []  # without their texts; those that no segment was made of yet
        self._n_windows = self._n_segments = 0
        self._end_s = 0.0
        self._languages: list[str] = []
        self._n_prompt = self._n_output = 0

    async def hear(self, window: Window) -> AsyncGenerator[TranscriptEvent, None]:
        """Ask for the text of the next window; yield what becomes certain."""
        self._transcript.begin_window(is_cut=window.is_cut)
        tokens: list[int] = []
        logprobs: list[float] = []
        if window.base64:  # who is asked about silence invents something
            tagged = _TaggedText(self._asking.text_tag)
            generation = await self._generation(window)
            async with aclosing(generation.parts(self._model)) as parts:
                async for answer, delta in parts:
                    text = tagged.push(delta.text if delta else "", is_final=answer.is_finished)
                    if certain := self._transcript.push(text):
                        yield certain
                    if answer.is_finished:
                        usage = answer.end.usage
                        self._n_prompt += usage.n_prompt_tokens
                        self._n_output += usage.n_output_tokens
                        tokens, logprobs = answer.tokens, [each.logprob or 0.0 for each in answer.logprobs]
                        if answer.end.reason is FinishReason.LENGTH:
                            self._note_length(window)
            if tagged.language:
                self._languages.append(tagged.language)
        if certain := self._transcript.end_window():
            yield certain
        mean = sum(logprobs) / len(logprobs) if logprobs else 0.0
        begin_s, self._end_s = max(window.begin_s, self._end_s), window.end_s
        self._windows.append(Segment(self._n_windows, begin_s, window.end_s, window.length_s, "", tuple(tokens), mean))
        self._n_windows += 1
        for segment in self._segments(n_open=int(window.is_cut)):
            yield segment

    def end(self) -> list[TranscriptEvent]:
        """Return what is left to say."""
        rest = self._transcript.end()
        language = max(self._languages, key=self._languages.count, default="")
        whole = Transcribed(
            self._transcript.text,
            "English" if self._wanted.translates else self._wanted.language or language,
            self._end_s,
            self._n_prompt,
            self._n_output,
        )
        return [*([rest] if rest else []), *self._segments(n_open=0), whole]

    def _segments(self, n_open: int) -> list[Segment]:
        """Return the windows whose text is whole as segments: all but the last `n_open`, and none without text."""
        n_whole = len(self._windows) - n_open
        whole, self._windows = self._windows[:n_whole], self._windows[n_whole:]
        found = [replace(window, text=self._transcript.part(window.index)) for window in whole]
        segments = [
            replace(segment, index=self._n_segments + number)
            for number, segment in enumerate(segment for segment in found if segment.text)
        ]
        self._n_segments += len(segments)
        return segments

    async def _generation(self, window: Window) -> Generation:
        """Return the request for the text of `window`."""
        wanted, asking = self._wanted, self._asking
        media = PromptMedia(self._model.senses)
        medium = Medium(MediaKind.SOUND, window.base64)
        if fault := media.fault(medium):  # its projector was left out when it was loaded
            raise fault
        sound = media.part_of(medium).text
        context = asking.context.format(context=wanted.context) if wanted.context else ""
        language = _LANGUAGES.get(wanted.language.lower(), wanted.language) if asking.text_tag else wanted.language
        said = asking.language.format(language=language) if language else ""
        question = (asking.translate if wanted.translates else asking.transcribe) + said + context
        system = asking.system.format(context=wanted.context)
        begin = asking.begin_in.format(language=language) if language and asking.begin_in else asking.begin
        messages = [
            *([Message("system", system)] if system else []),
            Message("user", sound + question if asking.is_sound_first else question + sound),
            *([Message("assistant", begin)] if begin and not wanted.translates else []),
        ]
        request = Request(
            request_id=uuid4().hex,
            prompt="",
            sampling=SamplingParams(temperature=wanted.temperature),
            max_tokens=wanted.max_tokens,
            n_logprobs=0 if wanted.has_details else None,
            returns_tokens=wanted.has_details,
            conversation=IN_MEMORY,  # nothing of a sound is kept: nobody asks about it again
        )
        turn = ChatTurn(messages=messages, request=request, media=media, thinking=Thinking(is_on=False), continues=True)
        generation = await chat_generation(self._model, turn)
        (request,) = generation.requests
        tags = (*request.visible_tags, asking.text_tag) if asking.text_tag else request.visible_tags
        return replace(generation, requests=(replace(request, visible_tags=tags),), on_finished=None)

    def _note_length(self, window: Window) -> None:
        cause = (
            f"The text from {window.begin_s:.0f} to {window.end_s:.0f} s was cut at {self._wanted.max_tokens:,} tokens"
        )
        self._model.record.notices.append(f"{cause}: the model repeats itself, or `max_tokens` is too few.")


_LANGUAGE, _MAX_LANGUAGE = "language ", 40  # characters
_LANGUAGE_LINE = re.compile(rf"\s*{_LANGUAGE}([^<>]{{1,{_MAX_LANGUAGE}}})\Z")


class _TaggedText:
    """The text of an answer that may begin with "language X" and `tag`, which says the `language`; any other is text
    from its begin. Without a `tag` all is text."""

    def __init__(self, tag: str) -> None:
        self.language = ""
        self._tag = tag
        self._held = ""
        self._is_text = not tag

    def push(self, text: str, *, is_final: bool) -> str:
        """Return what is text for certain."""
        if self._is_text:
            return text
        self._held += text
        before, tag, after = self._held.partition(self._tag)
        if tag:
            found = _LANGUAGE_LINE.match(before)
            self.language = found[1].strip() if found and found[1].strip() != "None" else ""
            self._is_text, self._held = True, ""
            return after if found else before + after
        begin = self._held.lstrip()
        most = len(_LANGUAGE) + _MAX_LANGUAGE + len(self._tag)
        if not is_final and len(begin) <= most and _LANGUAGE.startswith(begin[: len(_LANGUAGE)]):
            return ""
        self._is_text, held, self._held = True, self._held, ""
        return held
