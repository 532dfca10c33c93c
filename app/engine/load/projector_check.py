"""A test whether llama.cpp can run a projector beside a model, in a child that may crash.

A projector is code as much as weights: libmtmd builds its graph from sizes and tensors, looks its marks up in the
model's vocabulary, and ends the process where something does not fit. Only running it shows that. Owns the test and
`<cache>/projectors.json`, which has those that passed, by build and processor.
"""

from __future__ import annotations

import json
import sys
from base64 import b64encode
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path

import numpy as np

from app.engine.load.machine_file import MachineFile, model_key, this_build
from app.engine.media.chunks import MediaChunk, MediaLayout
from app.engine.media.decoded import MAX_SIDE, Picture, Sound
from app.engine.request import MediaInput
from app.protocol.errors import RequestError
from offload.devices.cpu import default_threads
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.system.errors import EngineError, ErrorInfo, UserError
from quantizer.system.memory_limit import out_of_memory
from quantizer.system.process import python_command, run_to_exit

TIMEOUT_S = 300.0  # the largest encode a small picture in half a minute on two slow cores
_REFUSED = 3  # exit status of a child that wrote an error
_SOUND_S = 2.0
_SIZE = (64, 48)  # of the picture that is encoded
# Those of pictures whose encoding is only begun: preprocessors divide and round sizes, and graphs are built of them.
_OTHER_SIZES = ((1, 1), (200, 1), (1, 200), (MAX_SIDE, 21), (21, MAX_SIDE), (1024, 768))
_PICTURE, _SOUND = b"\x89PNG\r\n\x1a\n", b"RIFF\0\0\0\0WAVE"  # of files that are decoded already
_MOST = 1 << 24  # tokens
_REMEDY = "Get the projector again, name another with --projector, or none."


def check_projector(model: Path, projector: Path, cache_dir: Path) -> None:
    """Return if the projector passed before on this machine beside this model, or passes now.

    Raises ModelFileError, with what the child wrote last, for one that ends it, and the child's own error.
    """
    results = MachineFile(cache_dir / "projectors.json", this_build())
    name = f"{model_key(model)}-{model_key(projector)}"
    if results.entry(name).get("is_safe"):
        return
    _test(model, projector)
    results.update(name, {"is_safe": True})


def _test(model: Path, projector: Path) -> None:
    command = python_command("app.engine.load.projector_check", str(model), str(projector))
    try:
        status, output, stderr = run_to_exit(command, TIMEOUT_S)
    except TimeoutError:
        cause = f"{projector.name} took more than {TIMEOUT_S:.0f} s for a small picture or sound."
        raise ModelFileError(cause, _REMEDY) from None
    except OSError as error:
        cause = f"The test of {projector.name} cannot be started: {error.strerror}."
        raise EngineError(cause, "Free memory or processes.") from error
    if status == 0:
        return
    if status == _REFUSED:
        raise ErrorInfo(**json.loads(output)).error()
    if shortage := out_of_memory("test of the projector", stderr.lines):
        raise shortage
    words = " | ".join(stderr.lines[-2:])[:300] or "no output"
    raise ModelFileError(f"llama.cpp cannot run the projector {projector.name}: {words.rstrip('.')}.", _REMEDY)


class _Given:
    """A decoder of pictures and sounds that are at hand."""

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

    decoder = _Given()
    options = llama.ProjectorOptions(key="", n_threads=default_threads(), max_tokens=_MOST, max_whole_tokens=_MOST)
    with ExitStack() as owned:
        pointer = owned.enter_context(llama.vocabulary_alone(model))
        loaded = llama.LlamaProjector(projector, pointer, options, decoder)
        owned.callback(loaded.close)
        if loaded.sees:
            for decoder.size in _OTHER_SIZES:
                with suppress(RequestError):  # it may refuse them
                    loaded.try_to_encode(_first_chunk(loaded.layout(_file(_PICTURE, decoder.size))))
            decoder.size = _SIZE
            loaded.encode(_first_chunk(loaded.layout(_file(_PICTURE))))
        if loaded.hears:
            loaded.encode(_first_chunk(loaded.layout(_file(_SOUND))))


def _file(begin: bytes, *parts: object) -> MediaInput:
    return MediaInput("", b64encode(begin + repr(parts).encode()).decode())


def _first_chunk(layout: MediaLayout) -> MediaChunk:
    return next(part for part in layout.parts if isinstance(part, MediaChunk))


def main() -> None:
    """Test the projector of the second argument beside the model of the first, as the child."""
    if sys.platform == "linux":
        with suppress(OSError):  # where memory ends, this process goes first
            Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    try:
        _run(Path(sys.argv[1]), Path(sys.argv[2]))
    except UserError as error:
        print(json.dumps(asdict(ErrorInfo.of(error))))
        sys.exit(_REFUSED)


if __name__ == "__main__":
    main()
