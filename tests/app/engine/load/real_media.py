"""Loads a model with its projector and encodes pictures twice; run as a child, for native code may end its process.

Usage: python real_media.py MODEL.gguf PROJECTOR.gguf CACHE; prints JSON {"sees", "hears", "shapes", "n_encoded", ...}.
"""

from __future__ import annotations

import json
import queue
import sys
from pathlib import Path
from typing import Any

from app.engine.load.loading import LoadedEngine, LoadListener, load_model
from app.engine.media.chunks import Embeddings, MediaChunk
from app.engine.media.media_queue import MediaQueue
from app.engine.messages import EngineConfig
from quantizer.system.errors import UserError
from tests.app.engine.media.files import as_media, picture_file

TIMEOUT_S = 60.0


class Counted:
    """A part of the queue that counts its calls."""

    def __init__(self, media_queue: MediaQueue) -> None:
        self.n_encoded = self.n_laid_out = 0
        encoder = media_queue._encoder
        self._encode, self._layout = encoder.encode, encoder.layout
        encoder.encode, encoder.layout = self.encode, self.layout  # type: ignore[method-assign]

    def encode(self, chunk: MediaChunk) -> Embeddings:
        self.n_encoded += 1
        return self._encode(chunk)

    def layout(self, media: Any) -> Any:
        self.n_laid_out += 1
        return self._layout(media)


def seen(loaded: LoadedEngine, forgotten: set[str]) -> dict[str, Any]:
    woken: queue.SimpleQueue[None] = queue.SimpleQueue()
    assert loaded.new_media_queue is not None
    media_queue = loaded.new_media_queue(lambda: woken.put(None))
    loaded.owned.callback(media_queue.close)
    counted = Counted(media_queue)
    media_queue.forget(forgotten)
    prepared: queue.SimpleQueue[Any] = queue.SimpleQueue()
    files = [as_media(picture_file(seed=seed)) for seed in (1, 2)]
    media_queue.prepare("request", files, "chat", prepared.put)
    layouts = prepared.get(timeout=TIMEOUT_S)
    chunks = [part for layout in layouts for part in layout.parts if isinstance(part, MediaChunk)]
    found = []
    for chunk in chunks:
        while (embeddings := media_queue.get(chunk)) is None:
            woken.get(timeout=TIMEOUT_S)
        found.append(embeddings)
    media_queue.end("request")
    return {
        "shapes": [embeddings.shape for embeddings in found],
        "sums": [float(embeddings.sum()) for embeddings in found],
        "n_encoded": counted.n_encoded,
        "n_laid_out": counted.n_laid_out,
    }


def main() -> None:
    model, projector, cache = sys.argv[1:4]
    listener = LoadListener(lambda _fraction: True, lambda _text: None, lambda _plan: None)
    config = EngineConfig(projector_path=projector, has_chosen_projector=True, n_ctx=512)
    try:
        loaded = load_model(Path(model), config, Path(cache), listener)
    except UserError as error:
        print(json.dumps({"error": type(error).__name__, "message": str(error)}))
        return
    with loaded.owned:
        facts = loaded.backend.facts
        print(json.dumps({"sees": facts.sees, "hears": facts.hears, **seen(loaded, set(sys.argv[4:]))}))


if __name__ == "__main__":
    main()
