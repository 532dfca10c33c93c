"""Texts said aloud: cut into sentences, each of which a model says and a client gets as soon as it is ready.

Owns the cutting, and which sound a voice is. How a sentence is said is the engine's.
"""

from __future__ import annotations

import re
import secrets
from base64 import b64encode
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

from app.common.media_formats import MediaFormat
from app.engine.messages import Speak
from app.engine.request import MediaInput
from app.protocol.errors import RequestError
from app.protocol.speech import MAX_SEED, MAX_VOICE_BYTES, Said, SpeechSampling
from app.service.models.served_model import ServedModel
from quantizer.system.files import explained, open_regular

MAX_CHARACTERS = 65_536  # of a text: an hour of speech
MAX_SENTENCE_BYTES = 900  # of UTF-8, as the engine's context has room for
MAX_SENTENCE_CHARACTERS = 300
_NEEDS_VOICE = "pockettts_gen"
VOICES = "voices"  # folder in the data folder
_VOICE_NAME = re.compile(r"[\w][\w .-]{0,63}")
_VOICE_ENDINGS = (".wav", ".flac", ".mp3", ".ogg")
_INLINE = re.compile(r"data:audio/[\w.+-]{1,40};base64,")
# The names of OpenAI's voices, which clients send because they have to send something.
_ANY_VOICE = frozenset(
    ("", "default", "alloy", "ash", "ballad", "cedar", "coral", "echo", "fable", "marin", "nova", "onyx", "sage")
) | {"shimmer", "verse"}
# Where a sentence ends: behind a mark and what closes it, at a blank; behind CJK marks; at an empty line. A mark
# within a word (3.5, e.g., a.m.) has no blank behind it or a small letter.
_END = re.compile(r"(?<=[.!?…])[\"'”’»)\]]*\s+(?![a-z])|(?<=[。！？])[”』」）]*\s*|\n\s*\n")
_WEAKER = (re.compile(r"(?<=[,;:—–，、；：])\s*"), re.compile(r"\s+"))  # where a long sentence is cut


def sentences(text: str) -> list[str]:
    """Return the sentences of `text` that say something, none longer than the engine takes; longer ones are cut at
    commas, else at blanks, else anywhere."""
    found = (" ".join(part.split()) for part in _cut(text, _END))
    return [part for sentence in found for part in _shortened(sentence) if any(letter.isalnum() for letter in part)]


def _cut(text: str, at: re.Pattern[str]) -> Iterator[str]:
    """Yield the parts of `text`, with what ends them."""
    begin = 0
    for match in at.finditer(text):
        if match.end() > begin:
            yield text[begin : match.end()].strip()
        begin = match.end()
    yield text[begin:].strip()


def _is_short(part: str) -> bool:
    return len(part) <= MAX_SENTENCE_CHARACTERS and len(part.encode("utf-8", "replace")) <= MAX_SENTENCE_BYTES


def _shortened(sentence: str, rank: int = 0) -> list[str]:
    if _is_short(sentence):
        return [sentence] if sentence else []
    if rank == len(_WEAKER):
        n = MAX_SENTENCE_BYTES // 4  # characters that fit, whatever they are
        return [sentence[i : i + n] for i in range(0, len(sentence), n)]
    parts: list[str] = []
    for part in (each for whole in _cut(sentence, _WEAKER[rank]) for each in _shortened(whole, rank + 1)):
        joined = f"{parts[-1]} {part}" if parts else part
        if parts and _is_short(joined):
            parts[-1] = joined
        else:
            parts.append(part)
    return parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Saying:
    """A text to be said, in sentences, with the voice that it is said with."""

    sentences: tuple[str, ...]
    voice: MediaInput | None
    sampling: SpeechSampling


def saying_of(
    model: ServedModel, text: str, voice: str, sampling: SpeechSampling, seed: int | None, data_dir: Path
) -> Saying:
    """Return `text` and `voice` as `model` takes them: the name of a sound in the folder of voices in `data_dir`, or a
    sound in a data: URL. Raises RequestError for a text without words, and for a voice that is not there or not
    taken."""
    parts = tuple(sentences(text))
    if not parts:
        raise RequestError("The text has no letter or digit to say.", "Send some words.")
    sound = _voice(voice, data_dir / VOICES)
    projector = model.file.projector.projector
    kind = projector.speech.kind if projector is not None and projector.speech is not None else ""
    if sound is None and kind == _NEEDS_VOICE:
        cause = f"{model.ref.id} says next to nothing without the sound of a voice."
        raise RequestError(cause, f"{_known(data_dir / VOICES)}, or send one in a data: URL.")
    if sound is not None and projector is not None and not projector.takes_voice:
        raise RequestError(f"{model.ref.id} has one voice, and takes no other.", "Leave voice out.")
    seed = secrets.randbelow(MAX_SEED) if seed is None else seed
    return Saying(
        sentences=parts,
        voice=sound,
        sampling=replace(sampling, seed=seed),
    )


def _voice(name: str, folder: Path) -> MediaInput | None:
    if inline := _INLINE.match(name):
        return MediaInput("", name[inline.end() :])
    if not _VOICE_NAME.fullmatch(name) and name not in _ANY_VOICE:
        raise RequestError("voice is neither a name nor a data: URL with a sound.", f"{_known(folder)}.")
    path = next((path for ending in _VOICE_ENDINGS if name and (path := folder / f"{name}{ending}").is_file()), None)
    if path is None:
        if name.lower() in _ANY_VOICE:
            return None
        raise RequestError(f"There is no voice {name!r}.", f"{_known(folder)}.")
    with explained(f"The voice {name} cannot be read", "Check its file.", RequestError), open_regular(path) as file:
        data = file.read(MAX_VOICE_BYTES + 1)
    if len(data) > MAX_VOICE_BYTES:
        raise RequestError(f"The voice {name} has more than 16 MiB.", "Cut it: its first 30 seconds count.")
    return MediaInput("", b64encode(data).decode())


def _known(folder: Path) -> str:
    """Return what may be said as a voice, as a remedy."""
    try:
        names = sorted({path.stem for path in folder.iterdir() if path.suffix.lower() in _VOICE_ENDINGS})
    except OSError:
        names = []
    if names:
        return f"Voices: {', '.join(names[:20])}"
    formats = ", ".join(form for form in MediaFormat if form.kind == "sound")
    return f"Put a few seconds of a voice into {folder} ({formats}), and give its name"


async def say(model: ServedModel, saying: Saying) -> AsyncGenerator[Said, None]:
    """Yield each sentence as soon as `model` has said it. Closing the generator ends the work within a second. Raises
    RequestError for a model that does not speak."""
    message = Speak(request_id=uuid4().hex, sentences=saying.sentences, voice=saying.voice, sampling=saying.sampling)
    n_cut = 0
    async with aclosing(model.speak(message)) as spoken:
        async for each in spoken:
            n_cut += each.is_cut
            yield Said(
                samples=each.samples,
                sample_rate=each.sample_rate,
                text=saying.sentences[each.index],
                is_cut=each.is_cut,
            )
    if n_cut:
        model.record.notices.append(
            f"{n_cut} of {len(saying.sentences)} sentences were cut: the model did not end them by itself."
        )
