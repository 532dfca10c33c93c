"""The files of the installed llama.cpp, and the backends of one that keeps them in files (GGML_BACKEND_DL).

Such a library has no backend, not even the processor's, until somebody loads it. With GGML_CPU_ALL_VARIANTS the
processor's is there once for each generation of processors, and each file knows whether this one can run it. Source:
`ggml_backend_load_best` in ggml/src/ggml-backend-reg.cpp as vendored in llama-cpp-python 0.3.36. Imports nothing
native, so that the service can use it.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from ctypes import c_char_p, c_int, c_size_t, c_void_p
from importlib import util
from pathlib import Path
from typing import Any

# The variant that a process loads instead of the best one, such as "haswell". The self-test sets it where the best one
# crashes (`app.engine.load.self_test`), for this process and its children; a user may set it, too.
CPU_VARIANT = "LOCALLLM_CPU_VARIANT"

_LIBRARY = re.compile(r"(?:lib)?(?:ggml|llama)[^.]*\.(?:so|dll|dylib)")
_BASE_LIBRARY = re.compile(r"(?:lib)?ggml-base\.\w+")
_FILE = re.compile(r"(?:lib)?ggml-(?P<name>.+)\.(?:so|dll)$")
_CPU = "cpu-"
_BASE = "base"  # no backend, but what all of them share


def library_folders() -> tuple[Path, ...]:
    """Return where the libraries of the installed llama.cpp are; none where it is not installed."""
    spec = util.find_spec("llama_cpp")
    if spec is None or spec.origin is None:
        return ()
    package = Path(spec.origin).parent
    # llama.cpp's CMake installs backends into the folder of programs, `bin` beside the package, unless
    # CMAKE_INSTALL_BINDIR says otherwise.
    return package / "lib", package.parent / "bin"


def library_files(folders: Iterable[Path]) -> tuple[Path, ...]:
    """Return the libraries in `folders`, each under one of its names: what they are decides what a build can do."""
    return tuple(path for folder in folders for path in sorted(folder.glob("*")) if _LIBRARY.fullmatch(path.name))


def load_backends(
    ggml_function: Callable[..., Any], folders: Iterable[Path], environment: Mapping[str, str] = os.environ
) -> None:
    """Load the backends that lie in the first of `folders` with one for processors, unless they are linked in already.
    The variable CPU_VARIANT of `environment` may name the processor's variant; the best one is loaded else."""
    if ggml_function("ggml_backend_reg_count", c_size_t)():
        return
    folders = tuple(folders)
    folder, files = _backends(folders)
    if folder is None:
        return
    chosen = environment.get(CPU_VARIANT, "")
    if not chosen or chosen not in cpu_variants(folders):
        ggml_function("ggml_backend_load_all_from_path", None, c_char_p)(os.fsencode(folder))
        return
    # Not by llama.cpp's own choice and then another: initializing a variant runs its code.
    load = ggml_function("ggml_backend_load", c_void_p, c_char_p)
    others = [path for name, path in files.items() if not name.startswith(_CPU)]
    for path in (*others, files[_CPU + chosen]):  # GPUs come first, as llama.cpp expects them
        load(os.fsencode(path))


def cpu_variants(folders: Iterable[Path]) -> tuple[str, ...]:
    """Return the variants of the processor's backend that this processor can run, the best first; none of a library
    that was built for one kind. Runs none of them."""
    folders = tuple(folders)
    _, files = _backends(folders)
    variants = {name.removeprefix(_CPU): path for name, path in files.items() if name.startswith(_CPU)}
    if variants:
        for path in library_files(folders):  # what they need, since not every build says where it lies
            if _BASE_LIBRARY.fullmatch(path.name):
                ctypes.CDLL(str(path))
    scores: dict[str, int] = {}
    for name, path in variants.items():
        with suppress(OSError, AttributeError):  # of another platform, or not a variant: llama.cpp ignores it as well
            score = ctypes.CDLL(str(path)).ggml_backend_score
            score.restype, score.argtypes = c_int, ()
            scores[name] = score()
    return tuple(sorted((name for name, score in scores.items() if score > 0), key=lambda name: -scores[name]))


def _backends(folders: Iterable[Path]) -> tuple[Path | None, dict[str, Path]]:
    """Return the first of `folders` with a backend for processors, and its backends by name, "rpc" or "cpu-haswell"."""
    for folder in folders:
        files = dict(_backend_files(folder))
        if any(name.startswith(_CPU) or f"{name}-" == _CPU for name in files):
            return folder, files
    return None, {}


def _backend_files(folder: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(folder.glob("*ggml-*")):
        if (match := _FILE.match(path.name)) and match["name"] != _BASE:
            yield match["name"], path
