"""The projector beside a loaded model, and the queue of pictures and sounds over it.

Owns how it is loaded: after its test in a child, on the first GPU of this machine that has layers of the model, and so
that what is computed as a whole fits a micro-batch. Runs in the worker; native code is imported when called.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from app.engine.load.machine_file import fingerprint, model_key
from app.engine.load.projector_check import check_projector
from app.engine.load.projector_file import validate_projector
from app.engine.media.decoder_process import DecoderProcess
from app.engine.media.media_queue import MediaQueue
from app.engine.media.media_store import MAX_DISK_BYTES, MediaStore
from app.engine.protocol.messages import EngineConfig
from app.engine.tuning.tune_results import RuntimeSettings
from offload.footprint.projector import min_ubatch, picture_tokens
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.gguf.header import Header
from quantizer.gguf.projector_header import ProjectorHeader
from quantizer.system.errors import EngineError

if TYPE_CHECKING:
    from app.engine.llama import LlamaBackend, LlamaModel, LlamaProjector


NewMediaQueue: TypeAlias = Callable[[Callable[[], None]], MediaQueue]  # from what wakes the engine

_CHOOSES_SIZE = frozenset({"gemma4v", "gemma4uv"})  # scales a picture to as many tokens as it may have
_REMOTE = "RPC"


@dataclass(frozen=True, slots=True)
class LoadedProjector:
    """A projector with the key of what it makes: its file, and the limit of what is computed as a whole."""

    encoder: LlamaProjector
    key: str


def usable_projector(
    config: EngineConfig, model: Header, cache_dir: Path
) -> tuple[EngineConfig, ProjectorHeader | None, str]:
    """Return `config` and the tested projector that it names for `model`, None without one.

    One that was found, not chosen, and is damaged, of another model, or cannot run is left out of `config`, with the
    reason. Raises ModelFileError for a chosen one, EngineError where it cannot be tested.
    """
    if not config.projector_path:
        return config, None, ""
    try:
        projector = validate_projector(Path(config.projector_path), model)
        check_projector(model.path, projector.path, cache_dir)
    except (ModelFileError, EngineError) as error:
        if config.has_chosen_projector:
            raise
        return replace(config, projector_path=""), None, f"The model takes no pictures or sounds: {error.cause}"
    return config, projector, ""


def load_projector(
    projector: ProjectorHeader,
    model: LlamaModel,
    backend: LlamaBackend,
    setting: RuntimeSettings,
    devices: tuple[str, ...],
    owned: ExitStack,
) -> LoadedProjector:
    """Load a tested projector, which `owned` frees, for the context of `backend`, whose facts then have what it takes.

    `devices` are the GPUs that have layers of the model. Raises EngineError when libmtmd cannot load it.
    """
    from app.engine import llama

    vision = projector.vision
    n_whole = backend.facts.n_ubatch
    is_causal = vision is None or not min_ubatch(projector, vision.width)
    n_most = picture_tokens(vision).most if vision is not None and vision.kind in _CHOOSES_SIZE else 0
    options = llama.ProjectorOptions(
        key=fingerprint(projector.path),
        n_threads=setting.n_threads,
        max_tokens=backend.facts.n_ctx,
        max_whole_tokens=n_whole,
        limits_tokens=not is_causal and n_whole < n_most,
        device=next((name for name in devices if not name.startswith(_REMOTE)), ""),
    )
    encoder = model.projector(projector.path, options, DecoderProcess())
    owned.callback(encoder.close)
    backend.facts = replace(backend.facts, sees=encoder.sees, hears=encoder.hears)
    limit = "" if is_causal else f"-{n_whole}"
    return LoadedProjector(encoder, f"{model_key(projector.path)}{limit}")


def media_queue_of(
    projector: LoadedProjector | None, weights: str, cache_dir: Path, *, saves: bool
) -> NewMediaQueue | None:
    """Return what makes the queue over a projector, for a model with the key `weights`; None without a projector.

    With `saves` layouts and embeddings are kept on disk.
    """
    if projector is None:
        return None
    folder = cache_dir / "media" / f"{weights}-{projector.key}"
    return partial(_new_queue, projector.encoder, folder, MAX_DISK_BYTES if saves else 0)


def _new_queue(encoder: LlamaProjector, folder: Path, max_disk_bytes: int, wake: Callable[[], None]) -> MediaQueue:
    return MediaQueue(encoder, MediaStore(folder, max_disk_bytes), wake)
