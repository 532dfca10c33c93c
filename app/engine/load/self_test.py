"""A test whether this build of llama.cpp runs on this processor, and with repacked weights, in a child that may crash.

GCC 12 miscompiles AMX: `_tile_loadconfig` tells it about 8 of 64 bytes, so the first product with a repacked quantized
weight ends the process (llama.cpp#20824). A library that was built on another machine (a home folder on the network, an
image) may have instructions that this processor lacks. Only running one shows either. A portable library has a variant
for each generation of processors: where the best one crashes, the next is tried. `<cache>/selftest.json` has the
results by build and processor.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from app.engine.library_files import CPU_VARIANT, cpu_variants, library_folders
from app.engine.load.machine_file import MachineFile, this_build
from app.engine.messages import EngineConfig
from app.engine.tuning.tune_results import RuntimeSettings
from offload.devices.host import default_threads
from quantizer.system.errors import EngineError, UserError
from quantizer.system.memory_limit import out_of_memory
from quantizer.system.process import (
    StderrTail,
    exit_error,
    is_illegal_instruction,
    python_command,
    run_to_exit,
)

NOTICE = (
    "This build of llama.cpp crashes on this processor when it repacks weights, so repacking is off. Everything works, "
    "prefill and decode may be slower. A build by another compiler (GCC 13 or later, or clang) fixes it."
)
_NAME = "self-test of llama.cpp"
_TIMEOUT_S = 120.0
_CANNOT_RUN = 3  # exit status of a child that could not run the test
_CHILD = tuple(python_command("app.engine.load.self_test"))
_PLAIN = "--plain"
_ENTRY = "repacking"


@dataclass(frozen=True, slots=True)
class SelfTestResult:
    """Whether extra buffer types (repacked weights) are safe, and whether the test ran just now. `variant` is the one
    of a portable library that is used instead of the best, empty for the best. `features` is what llama.cpp says of the
    build that passed, empty where none did."""

    is_safe: bool
    is_new: bool
    variant: str = ""
    features: str = ""


def run_self_test(cache_dir: Path, child: tuple[str, ...] = _CHILD) -> SelfTestResult:
    """Return the stored result for this build and processor, or run the test and store its result. From then on this
    process and its children load the variant that passed. Raises WrongProcessorError where no variant runs here,
    EngineError when the test cannot run at all, which says nothing about the build."""
    results = _results(cache_dir)
    known = results.entry(_ENTRY)
    if (is_safe := known.get("is_safe")) is not None:
        result = SelfTestResult(is_safe, False, known.get("variant", ""), known.get("features", ""))
    else:
        result = _test(child)
        entry = {"is_safe": result.is_safe, "variant": result.variant, "features": result.features}
        results.update(_ENTRY, entry)
    if result.variant:
        os.environ[CPU_VARIANT] = result.variant
    return result


def use_known_variant(cache_dir: Path) -> None:
    """Let this process load the variant that an earlier test found, if there is one; before llama.cpp is imported."""
    if variant := _results(cache_dir).entry(_ENTRY).get("variant"):
        os.environ[CPU_VARIANT] = variant


def _results(cache_dir: Path) -> MachineFile:
    key = " ".join(filter(None, (this_build(), os.environ.get(CPU_VARIANT, ""))))  # which a user may have chosen
    return MachineFile(cache_dir / "selftest.json", key)


def _test(child: Sequence[str]) -> SelfTestResult:
    """Run `child` until one passes: with the best variant, the others, and each again without repacking."""
    first = _Attempt.run(child, "")
    if first.passed:
        return SelfTestResult(is_safe=True, is_new=True, features=first.features)
    if first.is_timed_out:  # as unsafe as a crash, and others would take as long
        return SelfTestResult(is_safe=False, is_new=True)
    for variant, is_plain in _others(first.variants):
        attempt = _Attempt.run([*child, _PLAIN] if is_plain else child, variant)
        if attempt.passed:
            best = first.variants[0] if first.variants else ""
            return SelfTestResult(not is_plain, True, "" if variant == best else variant, attempt.features)
        if attempt.is_timed_out:
            break
    if is_illegal_instruction(first.status):
        raise exit_error(_NAME, first.status or 0, first.stderr, "", runs_llama=True)
    return SelfTestResult(is_safe=False, is_new=True)  # loading a model reports what happens then


def _others(variants: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Yield what to try after the best variant crashed, and whether without repacking. With repacking first: the next
    generation down is faster than the best one without it."""
    yield from ((variant, False) for variant in variants[1:])
    yield from ((variant, True) for variant in variants or ("",))


@dataclass(frozen=True, slots=True)
class _Attempt:
    """The end of one child, None where it took too long, the variants that it could have loaded, the best first, and
    the features of the build that it did load."""

    status: int | None
    stderr: StderrTail
    variants: tuple[str, ...] = ()
    features: str = ""

    @classmethod
    def run(cls, command: Sequence[str], variant: str) -> _Attempt:
        """Raises EngineError where the test cannot run."""
        environment = {**os.environ, CPU_VARIANT: variant} if variant else None
        try:
            status, output, stderr = run_to_exit(command, _TIMEOUT_S, environment)
        except TimeoutError:
            return cls(None, StderrTail())
        except OSError as error:
            cause = f"The {_NAME} cannot be started: {error.strerror}."
            raise EngineError(cause, "Free memory or processes.") from error
        if status and (shortage := out_of_memory(_NAME, stderr.lines)):
            raise shortage
        if status == _CANNOT_RUN:
            reason = (stderr.lines or ("no output",))[-1]
            raise EngineError(f"The {_NAME} cannot run: {reason[:300]}", "Install localllm again.")
        found: dict[str, Any] = {}
        # It crashed before it wrote them, or native code wrote something else.
        with suppress(ValueError, RecursionError):
            for line in output.splitlines()[:2]:
                found |= json.loads(line)
        return cls(status, stderr, tuple(found.get("variants", ())), found.get("features", ""))

    @property
    def passed(self) -> bool:
        return self.status == 0

    @property
    def is_timed_out(self) -> bool:
        return self.status is None


def main() -> None:
    """Compute a batch and a single token of the guide, with repacked weights unless the argument is --plain, as the
    child. Prints what the library is, each line before what may crash."""
    print(json.dumps({"variants": cpu_variants(library_folders())}), flush=True)
    from app.engine.backend import Chunk
    from app.engine.llama import LlamaModel
    from app.engine.llama.native import system_info
    from offload.placement.load_parameters import ON_HOST

    print(json.dumps({"features": system_info()}), flush=True)
    setting = RuntimeSettings(default_threads(), flash_attention=False, extra_buffers=_PLAIN not in sys.argv[1:])
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
