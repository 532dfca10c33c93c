"""A test whether this build of llama.cpp can run repacked weights on this processor, in a child that may crash.

GCC 12 miscompiles AMX: `_tile_loadconfig` tells it about 8 of 64 bytes, so the first product with a repacked quantized
weight ends the process (llama.cpp#20824). Only running one shows that. `<cache>/selftest.json` has the results by build
and processor.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import metadata, resources, util
from pathlib import Path

from app.engine.load.machine_file import MachineFile
from app.engine.messages import EngineConfig
from app.engine.tuning.tune_results import RuntimeSettings
from offload.devices.host import cpu_name, default_threads
from quantizer.system.errors import EngineError, UserError
from quantizer.system.memory_limit import out_of_memory
from quantizer.system.process import python_command, run_to_exit

NOTICE = (
    "This build of llama.cpp crashes on this processor when it repacks weights, so repacking is off. Everything works, "
    "prefill and decode may be slower. A build by another compiler (GCC 13 or later, or clang) fixes it."
)
_TIMEOUT_S = 120.0
_CANNOT_RUN = 3  # exit status of a child that could not run the test
_CHILD = tuple(python_command("app.engine.load.self_test"))


@dataclass(frozen=True, slots=True)
class SelfTestResult:
    """Whether extra buffer types (repacked weights) are safe, and whether the test ran just now."""

    is_safe: bool
    is_new: bool


def run_self_test(cache_dir: Path, child: tuple[str, ...] = _CHILD) -> SelfTestResult:
    """Return the stored result for this build and processor, or run the test and store its result. Raises EngineError
    when the test cannot run at all, which says nothing about the build."""
    results = MachineFile(cache_dir / "selftest.json", _build_key())
    known = results.entry("repacking").get("is_safe")
    if known is not None:
        return SelfTestResult(known, is_new=False)
    status: int | None = None
    try:
        status, _, stderr = run_to_exit(child, _TIMEOUT_S)
        if status and (shortage := out_of_memory("self-test of llama.cpp", stderr.lines)):
            raise shortage
        if status == _CANNOT_RUN:
            reason = (stderr.lines or ("no output",))[-1]
            raise EngineError(f"The self-test of llama.cpp cannot run: {reason[:300]}", "Install localllm again.")
    except TimeoutError:  # as unsafe as a crash
        pass
    except OSError as error:
        cause = f"The self-test of llama.cpp cannot be started: {error.strerror}."
        raise EngineError(cause, "Free memory or processes.") from error
    results.update("repacking", {"is_safe": status == 0})
    return SelfTestResult(status == 0, is_new=True)


def _build_key() -> str:
    """Return what the result depends on: package version, library file, processor."""
    spec = util.find_spec("llama_cpp")
    folder = Path(spec.origin).parent / "lib" if spec and spec.origin else Path()
    files = sorted(path for path in folder.glob("*ggml-cpu*") if path.is_file())
    stamps = ",".join(f"{path.stat().st_size}@{path.stat().st_mtime_ns}" for path in files[:1])
    return f"{metadata.version('llama-cpp-python')} {stamps} {cpu_name()}"


def main() -> None:
    """Compute a batch and a single token of the guide with repacked weights, as the child."""
    from app.engine.backend import Chunk
    from app.engine.llama import LlamaModel
    from offload.placement.load_parameters import ON_HOST

    setting = RuntimeSettings(default_threads(), flash_attention=False, extra_buffers=True)
    try:
        with resources.as_file(resources.files("assets") / "guide" / "guide-Q8_0.gguf") as path:
            model = LlamaModel(path, ON_HOST, setting.extra_buffers, on_progress=lambda _fraction: True)
            backend = model.context(EngineConfig(n_ctx=256), setting)
            tokens = [1] * 64
            backend.decode([Chunk(0, 0, tokens, 1)])
            backend.decode([Chunk(0, len(tokens), [1], 1)])
            backend.close()
            model.close()
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(_CANNOT_RUN)


if __name__ == "__main__":
    main()
