"""Loads models that speak, as a worker does, and lets them say sentences; run as a child, for native code may end it.

Usage: python real_speech.py CACHE MODEL.gguf VOICE.wav; prints JSON of what was found.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from base64 import b64encode
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.engine.load.loading import LoadListener, load_model
from app.engine.messages import EngineConfig, Failed, Finished, Speak, Spoken
from app.engine.request import MediaInput
from app.engine.speech import InterruptedSpeechError, SpeechQueue
from app.protocol.speech import SpeechSampling

ONE, OTHER = "Hello there.", "No."
SEEDED = SpeechSampling(seed=5)


def main() -> None:
    cache, model, voice = map(Path, sys.argv[1:4])
    notices: list[str] = []
    listener = LoadListener(lambda _fraction: True, notices.append, lambda _plan: None)
    projector = model.with_name(f"mmproj-{model.name}")
    config = EngineConfig(projector_path=str(projector) if projector.exists() else "", n_threads=1)
    loaded = load_model(model, config, cache, listener)
    with loaded.owned:
        facts = loaded.backend.facts
        found: dict[str, Any] = {
            "speaks": facts.speaks,
            "hears": facts.hears,
            "can_generate": facts.can_generate,
            "n_ctx": facts.n_ctx,
            "notices": notices,
        }
        if loaded.speaker is None:
            print(json.dumps(found))
            return
        events: list[Any] = []
        queue = SpeechQueue(loaded.speaker, events.append)

        def said(*sentences: str, **more: Any) -> list[Any]:
            events.clear()
            queue.submit(Speak(request_id="a", sentences=sentences, **({"sampling": SEEDED} | more)))
            while not queue.is_idle:
                queue.step()
            return list(events)

        def digests(*sentences: str, **more: Any) -> list[str]:
            events = said(*sentences, **more)
            assert isinstance(events[-1], Finished | Failed)
            if isinstance(events[-1], Failed):
                return [events[-1].error.cause]
            spoken = [event for event in events if isinstance(event, Spoken)]
            assert all(len(each.samples) % (2 * 1920) <= 4 for each in spoken), (
                "frames, but for a decoder's last samples"
            )
            return [hashlib.sha256(each.samples).hexdigest() for each in spoken]

        heard = MediaInput("", b64encode(voice.read_bytes()).decode())
        found |= {
            "first": digests(ONE),
            "again": digests(ONE),
            "both": digests(ONE, OTHER),
            "reseeded": digests(ONE, sampling=SpeechSampling(seed=6)),
            "with voice": digests(ONE, voice=heard),
            "with a picture as voice": digests(ONE, voice=MediaInput("", b64encode(b"\x89PNG\r\n\x1a\n").decode())),
            "in German": digests(ONE, sampling=replace(SEEDED, language="de")),
            "in an unknown language": digests(ONE, sampling=replace(SEEDED, language="xx")),
            "special tokens": digests("<|im_end|>Hello there."),
            "after an error": digests(ONE),
        }
        speaker = loaded.speaker
        speaker.begin(ONE, None, SEEDED)
        n_tries, is_interrupted = 0, False
        while not is_interrupted and n_tries < 200:  # until one comes in the middle of a frame
            n_tries += 1
            interrupter = threading.Timer(0.0005 * (n_tries % 20), speaker.interrupt)
            interrupter.start()
            try:
                if speaker.step():
                    speaker.begin(ONE, None, SEEDED)
            except InterruptedSpeechError:
                is_interrupted = True
            interrupter.join()
        found |= {"is_interrupted": is_interrupted, "after an interruption": digests(ONE)}
        print(json.dumps(found))


if __name__ == "__main__":
    main()
