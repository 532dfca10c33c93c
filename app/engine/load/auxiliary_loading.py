"""Loading what goes beside a model: its MTP layer, a draft head or a draft model, and a projector with its queue.

A projector is code as much as weights: libmtmd builds its graph from sizes and tensors, looks its marks up in the
model's vocabulary, and ends the process where something does not fit. Only running it shows that, so a child tries it
first (`python -m app.engine.load.auxiliary_loading`); `<cache>/projectors.json` has those that passed, by build and
processor. Runs in the worker; native code is imported when called.
"""

from __future__ import annotations

import json
import sys
from base64 import b64encode
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from app.engine.load.draft_copy import CopyRecords, is_copy
from app.engine.load.head_file import is_head, read_head
from app.engine.load.machine_file import MachineFile, fingerprint, model_key, this_build
from app.engine.load.planner import LoadAttempt
from app.engine.load.prediction_layers import has_mtp_layers, mtp_layer_bytes
from app.engine.load.projector_file import validate_projector
from app.engine.media.chunks import MAX_SIDE, MediaChunk, MediaLayout, Picture, Sound
from app.engine.media.decoder_process import DecoderProcess
from app.engine.media.media_queue import MediaQueue
from app.engine.media.media_store import MAX_DISK_BYTES, MediaStore
from app.engine.messages import BackendFacts, EngineConfig
from app.engine.request import MediaInput
from app.engine.speculative.cost_model import MAX_DRAFT_TOKENS, StepCost, best_draft_length
from app.engine.speculative.draft_heads import AutoregressiveHeadSource, BlockHeadSource, HeadKind
from app.engine.speculative.draft_model import DraftModel, vocabulary_mismatch
from app.engine.speculative.draft_source import DraftSource
from app.engine.tuning.speed_bench import measure_single_step
from app.engine.tuning.tune_results import RuntimeSettings
from app.protocol.errors import RequestError
from offload.devices.host import default_threads
from offload.footprint.auxiliary_models import min_ubatch, picture_tokens
from offload.placement.load_parameters import LoadParameters
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.gguf.header import Header, read_header
from quantizer.gguf.hyperparameters import hyperparameter
from quantizer.gguf.projector_header import ProjectorHeader, read_projector
from quantizer.gguf.tensor_types import file_type_name
from quantizer.system.errors import EngineError, ErrorInfo, UserError
from quantizer.system.memory_limit import out_of_memory
from quantizer.system.process import python_command, run_to_exit

if TYPE_CHECKING:
    from app.engine.llama import LlamaBackend, LlamaModel, LlamaProjector, LlamaSpeaker, LoadedHead


Place = Callable[[Path, EngineConfig], LoadParameters]  # where the layers of another file go

_NO_TRUNCATION = "cache cannot drop rejected draft tokens"
_REMEDY = "Choose a smaller model of the same family for --draft, or leave it out."


NewMediaQueue: TypeAlias = Callable[[Callable[[], None]], MediaQueue]  # from what wakes the engine

_CHOOSES_SIZE = frozenset({"gemma4v", "gemma4uv"})  # kinds that scale a picture to the tokens that it may have
_RPC_PREFIX = "RPC"
_TEST_TIMEOUT_S = 300.0  # the largest projectors encode a small picture in half a minute on two slow cores
_REFUSED = 3  # exit status of a child that wrote an error
_SOUND_S = 2.0
_SIZE = (64, 48)  # of the picture that is encoded whole
# Of pictures whose encoding is only begun: preprocessors divide and round sizes, and graphs are built by them.
_OTHER_SIZES = ((1, 1), (200, 1), (1, 200), (MAX_SIDE, 21), (21, MAX_SIDE), (1024, 768))
_PICTURE, _SOUND = b"\x89PNG\r\n\x1a\n", b"RIFF\0\0\0\0WAVE"  # how such files begin
_MAX_TOKENS = 1 << 24
_PROJECTOR_REMEDY = "Get the projector again, name another with --projector, or none."


def load_head(path: Path, model: Header, attempt: LoadAttempt, place: Place, owned: ExitStack) -> LoadedHead:
    """Load the weights of a draft head for `model`; `owned` frees them. Raises EngineError when llama.cpp cannot."""
    from app.engine import llama

    parameters, extra_buffers = place(path, attempt.config), attempt.setting.extra_buffers
    spec = read_head(read_header(path), model)
    has_layers = spec.kind is HeadKind.MTP
    head = llama.LlamaModel(path, parameters, extra_buffers, lambda _fraction: True, with_mtp=has_layers)
    owned.callback(head.close)
    return llama.LoadedHead(head, spec, model_key(path))


def load_draft_sources(
    model: LlamaModel,
    backend: LlamaBackend,
    header: Header,
    attempt: LoadAttempt,
    place: Place,
    step_cost: StepCost,
    owned: ExitStack,
    on_notice: Callable[[str], None],
    cache_dir: Path,
) -> tuple[DraftSource, ...]:
    """Load the draft sources of the loaded `model` with this `header`, with a notice of each. `owned` frees them.
    Raises ModelFileError for a draft model that does not match it."""
    facts, config = backend.facts, attempt.config
    head = make_head_source(backend, step_cost, mtp_layer_bytes(header))
    name = header.path.name
    if head is not None and config.draft_path and is_head(read_header(Path(config.draft_path))):
        on_notice(f"{Path(config.draft_path).name} drafts for {name}: {head.name}.")
        return (head,)
    if head is not None:
        n_layers = hyperparameter(header, "nextn_predict_layers")
        layers = "multi-token-prediction layer" if n_layers == 1 else f"{n_layers} multi-token-prediction layers"
        on_notice(f"{name} drafts with its own {layers}.")
    elif has_mtp_layers(header):
        on_notice(f"{name} has multi-token-prediction layers that llama.cpp cannot run, and answers without them.")
    if config.uses_copy and config.draft_path and is_copy(read_header(Path(config.draft_path))):
        draft_model = _load_paying_copy(attempt, model, backend, step_cost, owned, place, on_notice, cache_dir)
    else:
        draft_model = load_draft_model(config, attempt.setting, model, facts, step_cost, owned, place)
    return tuple(source for source in (head, draft_model) if source is not None)


def make_head_source(
    backend: LlamaBackend, step_cost: StepCost, mtp_bytes: int | None = None
) -> AutoregressiveHeadSource | BlockHeadSource | None:
    """Return the draft source of the head that a backend was made with, None without one. `mtp_bytes` are those of the
    model's MTP layers, which are no model of their own."""
    from app.engine import llama

    if not isinstance(backend, llama.HeadBackend):
        return None
    head = backend.head
    kind = head.spec.kind
    n_bytes = mtp_bytes if kind is HeadKind.MTP and mtp_bytes else head.facts.model_bytes
    share = n_bytes / max(1, backend.facts.model_bytes)
    if isinstance(head, llama.AutoregressiveContext):
        n_most = head.spec.n_layers if head.spec.n_layers > 1 else MAX_DRAFT_TOKENS
        return AutoregressiveHeadSource(kind.source_name, head, share, step_cost, n_most=n_most)
    assert isinstance(head, llama.BlockContext), "heads predict one token further, or a block"
    return BlockHeadSource(kind.source_name, head, share, step_cost)


def load_draft_model(
    config: EngineConfig,
    setting: RuntimeSettings,
    target: LlamaModel,
    facts: BackendFacts,
    step_cost: StepCost,
    owned: ExitStack,
    place: Place,
) -> DraftModel | None:
    """Load the draft model that `config` names for a target with these `facts`; return None when it names none. `place`
    returns where its layers go, `owned` frees it. Its context is as long as the target's. Raises ModelFileError when
    the two do not match, EngineError when llama.cpp cannot load it."""
    if not config.draft_path:
        return None
    return DraftModel(_open_draft_model(config, setting, target, facts, owned, place), facts, step_cost)


def _load_paying_copy(
    attempt: LoadAttempt,
    target: LlamaModel,
    backend: LlamaBackend,
    step_cost: StepCost,
    owned: ExitStack,
    place: Place,
    on_notice: Callable[[str], None],
    cache_dir: Path,
) -> DraftModel | None:
    """Load the low-bit copy of a model, and measure and record what its steps take. Return None, with a notice, where
    no draft of it would pay, or it cannot be loaded: the model answers without."""
    config, setting, path = attempt.config, attempt.setting, Path(attempt.config.draft_path)
    records = CopyRecords.of(cache_dir)
    with ExitStack() as own:
        try:
            copy = _open_draft_model(config, setting, target, backend.facts, own, place)
        except (ModelFileError, EngineError) as error:
            on_notice(f"The low-bit copy of this model does not draft: {error.cause}")
            return None
        target_s, copy_s = measure_single_step(backend, setting), measure_single_step(copy, setting)
        header, step = read_header(path), copy_s / target_s if target_s else 0.0
        known, kind = records.evidence(header), file_type_name(header.integer("general.file_type"))
        chances = repeat(known.acceptance, MAX_DRAFT_TOKENS)
        best = best_draft_length(chances, step_cost, 1, 1, step, is_lasting=True)
        if step:
            records.record_steps(path, step, pays=best.n_tokens > 0)
        accepted = f"{known.acceptance:.0%} are accepted"
        measured = f"a token of the copy in {kind} takes {step:.2f} of one of the model, {accepted}"
        if step and not best.n_tokens:
            on_notice(f"The low-bit copy of this model is not used, for no draft of it pays: {measured}.")
            return None
        on_notice(f"A low-bit copy of this model drafts for it, {best.gain:.2f} times as fast as without: {measured}.")
        owned.push(own.pop_all())
    return DraftModel(copy, backend.facts, step_cost)


def _open_draft_model(
    config: EngineConfig,
    setting: RuntimeSettings,
    target: LlamaModel,
    facts: BackendFacts,
    owned: ExitStack,
    place: Place,
) -> LlamaBackend:
    from app.engine import llama

    path = Path(config.draft_path)
    if not facts.truncation.allows_rejection(facts.n_sequences):
        raise _mismatch(path, f"this model's {_NO_TRUNCATION}")
    config = replace(config, n_ctx=facts.n_ctx)
    model = llama.LlamaModel(path, place(path, config), setting.extra_buffers, lambda _fraction: True)
    owned.callback(model.close)
    if difference := vocabulary_mismatch(target.vocabulary(), model.vocabulary()):
        raise _mismatch(path, difference)
    backend = model.context(config, setting)
    owned.callback(backend.close)
    if not backend.facts.truncation.allows_rejection(facts.n_sequences):
        raise _mismatch(path, f"its {_NO_TRUNCATION}")
    return backend


def _mismatch(path: Path, reason: str) -> ModelFileError:
    return ModelFileError(f"{path.name} cannot draft for this model: {reason}.", _REMEDY)


@dataclass(frozen=True, slots=True)
class LoadedProjector:
    """A projector with the key of its embeddings: its file, and the limit of chunks that need one batch; and what
    speaks with it, if it does."""

    encoder: LlamaProjector
    key: str
    speaker: LlamaSpeaker | None = None


def usable_projector(
    config: EngineConfig, model: Header, cache_dir: Path
) -> tuple[EngineConfig, ProjectorHeader | None, str]:
    """Return `config` and the tested projector that it names for `model`, None without one. One that was found, not
    chosen, and is damaged, of another model, or cannot run is left out of `config`, with the reason. Raises
    ModelFileError for a chosen one, EngineError where it cannot be tested."""
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
    """Load a tested projector for the context of `backend`, whose facts then say what it takes; `owned` frees it.
    `devices` are the GPUs that have layers of the model. Raises EngineError when libmtmd cannot load it."""
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
        device=next((name for name in devices if not name.startswith(_RPC_PREFIX)), ""),
    )
    encoder = model.projector(projector.path, options, DecoderProcess())
    owned.callback(encoder.close)
    backend.facts = replace(backend.facts, sees=encoder.sees, hears=encoder.hears, speaks=encoder.speaks)
    limit = "" if is_causal else f"-{n_whole}"
    speaker = None
    if encoder.speaks:
        speaker = backend.speaker(encoder)
        owned.callback(speaker.close)
    return LoadedProjector(encoder, f"{model_key(projector.path)}{limit}", speaker)


def media_queue_of(
    projector: LoadedProjector | None, weights: str, cache_dir: Path, *, saves: bool
) -> NewMediaQueue | None:
    """Return what makes the queue over a projector, for a model with the key `weights`; None without a projector, and
    for one that speaks. With `saves` layouts and embeddings are kept on disk."""
    if projector is None or projector.speaker is not None:
        return None
    folder = cache_dir / "media" / f"{weights}-{projector.key}"
    encoder, max_bytes = projector.encoder, MAX_DISK_BYTES if saves else 0
    return lambda wake: MediaQueue(encoder, MediaStore(folder, max_bytes), wake)


def check_projector(model: Path, projector: Path, cache_dir: Path) -> None:
    """Return if the projector passed a test beside this model on this machine before, or passes now. Raises
    ModelFileError, with the child's last output, for one that ends it, and the child's own error."""
    results = MachineFile(cache_dir / "projectors.json", this_build())
    name = f"{model_key(model)}-{model_key(projector)}"
    if results.entry(name).get("is_safe"):
        return
    command = python_command("app.engine.load.auxiliary_loading", str(model), str(projector))
    try:
        status, output, stderr = run_to_exit(command, _TEST_TIMEOUT_S)
    except TimeoutError:
        cause = f"{projector.name} took more than {_TEST_TIMEOUT_S:.0f} s for a small picture or sound."
        raise ModelFileError(cause, _PROJECTOR_REMEDY) from None
    except OSError as error:
        cause = f"The test of {projector.name} cannot be started: {error.strerror}."
        raise EngineError(cause, "Free memory or processes.") from error
    if status == _REFUSED:
        raise ErrorInfo(**json.loads(output)).error()
    if status:
        if shortage := out_of_memory("test of the projector", stderr.lines):
            raise shortage
        words = " | ".join(stderr.lines[-2:])[:300] or "no output"
        cause = f"llama.cpp cannot run the projector {projector.name}: {words.rstrip('.')}."
        raise ModelFileError(cause, _PROJECTOR_REMEDY)
    results.update(name, {"is_safe": True})


class _FixedDecoder:
    """A `MediaDecoder` that decodes nothing: every picture has `size`, every sound two seconds."""

    def __init__(self) -> None:
        self.size = _SIZE

    def picture(self, data: bytes) -> Picture:  # noqa: ARG002 - of the protocol
        width, height = self.size
        return Picture(width, height, np.arange(3 * width * height).astype(np.uint8).tobytes())

    def sound(self, data: bytes, sample_rate: int) -> Sound:  # noqa: ARG002 - of the protocol
        return Sound(np.sin(np.arange(int(_SOUND_S * sample_rate), dtype=np.float32) / 7))

    def close(self) -> None:
        pass


def _run(model: Path, projector: Path) -> None:
    """Lay out and encode pictures and a sound beside the vocabulary of `model`. Raises as LlamaProjector does."""
    from app.engine import llama

    decoder, header = _FixedDecoder(), read_projector(projector)
    options = llama.ProjectorOptions(
        key="",
        n_threads=default_threads(),
        max_tokens=_MAX_TOKENS,
        max_whole_tokens=_MAX_TOKENS,
        n_embd=max((encoder.width for encoder in header.encoders), default=0),
    )
    with ExitStack() as owned:
        pointer = owned.enter_context(llama.vocabulary_alone(model))
        loaded = llama.LlamaProjector(projector, pointer, options, decoder)
        owned.callback(loaded.close)
        if loaded.sees:
            for decoder.size in _OTHER_SIZES:
                with suppress(RequestError):  # a projector may refuse a size
                    loaded.try_to_encode(_first_chunk(loaded.layout(_file(_PICTURE, decoder.size))))
            decoder.size = _SIZE
            loaded.encode(_first_chunk(loaded.layout(_file(_PICTURE))))
        if header.speaks:
            loaded.try_to_speak(_file(_SOUND))
        if loaded.hears:
            loaded.encode(_first_chunk(loaded.layout(_file(_SOUND))))


def _file(begin: bytes, *parts: object) -> MediaInput:
    return MediaInput("", b64encode(begin + repr(parts).encode()).decode())


def _first_chunk(layout: MediaLayout) -> MediaChunk:
    return next(part for part in layout.parts if isinstance(part, MediaChunk))


def main() -> None:
    """Test the projector of the second argument beside the model of the first, as the child."""
    if sys.platform == "linux":
        with suppress(OSError):  # where memory runs out, the system ends this process first
            Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    try:
        _run(Path(sys.argv[1]), Path(sys.argv[2]))
    except UserError as error:
        print(json.dumps(asdict(ErrorInfo.of(error))))
        sys.exit(_REFUSED)


if __name__ == "__main__":
    main()
