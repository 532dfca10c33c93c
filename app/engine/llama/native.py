"""The native library: `lib`, its log, tokenization, and functions that llama_cpp does not bind.

The only module that imports llama_cpp. The sizes of llama.cpp's buffers are parsed from its log, since no function
returns them (source: `load_tensors` in src/llama-model.cpp, `sched_reserve` in src/llama-context.cpp and the caches'
constructors, as vendored in llama-cpp-python 0.3.36).
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import sys
from collections import deque
from collections.abc import Callable, Sequence
from ctypes import c_char_p, c_int, c_size_t, c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

# libgomp reads this once, when it is loaded. Each operation of a graph ends with a barrier of all threads; by default a
# thread spins there for milliseconds and, where other programs run, takes the processor from the thread it waits for.
os.environ.setdefault("GOMP_SPINCOUNT", "3000")

# The package's own __init__ imports a second engine, of classes over these bindings, which takes time at each load and
# opens files that it never closes: the package is made known without it, its modules are imported as ever.
if "llama_cpp" not in sys.modules and (_package := importlib.util.find_spec("llama_cpp")):
    sys.modules["llama_cpp"] = importlib.util.module_from_spec(_package)

from llama_cpp import llama_cpp
from llama_cpp._ctypes_extensions import load_shared_library

from app.engine.backend import MemoryShortError
from app.engine.library_files import library_folders, load_backends
from app.protocol.errors import RequestError
from offload.devices.numa import NumaStrategy
from offload.format import format_memory
from quantizer.system.errors import EngineError, redact_paths

_CPU_DEVICE = 0  # GGML_BACKEND_DEVICE_TYPE_CPU@0.3.36
_USAGE_WEIGHTS = 1  # GGML_BACKEND_BUFFER_USAGE_WEIGHTS@0.3.36

lib = llama_cpp  # the ctypes bindings, which the other modules of this folder take from here

NativeSampler = Any  # a ctypes pointer to llama_sampler
EvalCallback = Any  # a ctypes function pointer, ggml_backend_sched_eval_callback
MAX_PROMPT_BYTES = 16 << 20
_N_LOG_LINES = 50
_MIB = 1 << 20
_BUFFER_SIZE = re.compile(r": +(\S+?)(?:_Mapped)? +(model|KV|RS|compute) buffer size = +([\d.]+) MiB")
# of a tensor that the graph of a model skips on purpose, llama.cpp says "unused"
_LOADED_TENSOR = re.compile(r"(?:create_tensor: loading|model has unused) tensor (\S+)")
_BUFFER_BYTES = re.compile(r"buffer of size (\d+)")
_NOT_REPORTED = re.compile(
    r"n_ctx_seq \(\d+\) > n_ctx_train"  # counts the cells of all answers, which share them
    # An interrupted batch is no error: nobody waits for its answer any more (GGML_STATUS_ABORTED is 1).
    r"|graph_compute_async failed with error 1$|failed to compute graph, compute status: 1$|failed to decode, ret = 2$"
    r"|embeddings required but some input tokens were not marked as outputs"  # of a model that speaks: all are wanted
    r"|using full-size SWA cache"  # that of a draft head, which asks for it
    r"|removing memory module entries"  # follows an interrupted batch, or a failure that was reported already
)
_OF_MEMORY = re.compile(r"(failed|unable) to allocate|out of memory|OutOf(Device|Host)Memory")
# Names of C++ functions as the compilers of Linux and macOS make them, and as Microsoft's does.
_SET_LAYER_INPUTS = (
    "_Z30llama_set_embeddings_layer_inpP13llama_contextjb",
    "?llama_set_embeddings_layer_inp@@YAXPEAUllama_context@@I_N@Z",
)
_GET_LAYER_INPUTS = (
    "_Z30llama_get_embeddings_layer_inpP13llama_contextj",
    "?llama_get_embeddings_layer_inp@@YAPEAMPEAUllama_context@@I@Z",
)
_WARN, _ERROR, _CONTINUED = 3, 4, 5  # ggml_log_level@0.3.36; llama_cpp._logger has another, wrong order


class EvalObserver(Protocol):
    """A callback for the nodes of llama.cpp's graphs; must exist as long as the contexts created with it."""

    callback: EvalCallback


class NativeLog:
    """Receiver of llama.cpp's log: the last warnings and errors, which also go to stderr, and the sizes of buffers."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=_N_LOG_LINES)
        self._level = 0
        self._buffers: list[Buffer] = []
        self.loaded_tensors: set[str] | None = None  # names of tensors that llama.cpp loads, where a set is given
        self.callback = lib.llama_log_callback(self._receive)  # must live as long as llama.cpp may call it
        lib.llama_log_set(self.callback, ctypes.c_void_p())

    def last_lines(self, n_lines: int = 3) -> str:
        """Return the last lines joined to one, without control characters and folders."""
        words = " ".join(redact_paths(line) for line in list(self._lines)[-n_lines:])
        return "".join(character for character in words if character.isprintable())

    def take_buffers(self) -> tuple[Buffer, ...]:
        buffers, self._buffers = tuple(self._buffers), []
        return buffers

    def _receive(self, level: int, text: bytes, data: object) -> None:  # noqa: ARG002 - llama.cpp passes it
        if level != _CONTINUED:
            self._level = level
        line = text.decode("utf-8", "replace").strip()
        if buffer := parse_buffer(line):
            self._buffers.append(buffer)
        if self.loaded_tensors is not None and (tensor := _LOADED_TENSOR.search(line)):
            self.loaded_tensors.add(tensor[1])
        if line and is_reported(self._level, line):
            self._lines.append(line)
            print(line, file=sys.stderr, flush=True)


def is_reported(level: int, line: str) -> bool:
    """Return whether a line of llama.cpp's log is a warning or an error that applies to localllm."""
    return level in (_WARN, _ERROR) and not _NOT_REPORTED.search(line)


@cache
def native_log() -> NativeLog:
    """Return the process's only log; llama.cpp supports one receiver."""
    return NativeLog()


def load_error(what: str, words: str, remedy: str) -> EngineError:
    """Return the error for `what` with llama.cpp's last `words`: MemoryShortError if those are about memory."""
    if not _OF_MEMORY.search(words):
        return EngineError(f"{what}: {words}", remedy)
    buffer = _BUFFER_BYTES.search(words)
    needs = f", which needs another {format_memory(int(buffer[1]))}" if buffer else ""
    return MemoryShortError(f"Not enough memory: {what}{needs}.", remedy)


def metadata_text(model: int, key: str) -> str | None:
    """Return the value of `key` in a loaded model's metadata as text, cut after 63 bytes; None where it is missing."""
    buffer = ctypes.create_string_buffer(64)
    if lib.llama_model_meta_val_str(model, key.encode(), buffer, len(buffer)) < 0:
        return None
    return buffer.value.decode("utf-8", "replace")


def architecture_of(model: int) -> str:
    """Return llama.cpp's name for the architecture of a loaded model."""
    return metadata_text(model, "general.architecture") or ""


@cache
def mtmd() -> Any:
    """Return the binding of libmtmd, loaded only for models with a projector; its log goes where llama.cpp's goes."""
    from llama_cpp import mtmd_cpp

    mtmd_cpp.mtmd_helper_log_set(native_log().callback, ctypes.c_void_p())
    return mtmd_cpp


@cache
def hidden_states() -> Any:
    """Return llama.cpp's functions for hidden states: exported but not stable, so only draft heads depend on them."""
    from llama_cpp import llama_cpp_ext

    return llama_cpp_ext


@cache
def layer_inputs() -> tuple[Callable[[int, int, bool], None], Callable[[int, int], Any]]:
    """Return llama.cpp's functions for the inputs of layers, exported as C++ only: one that records them, of (context,
    layer, True), and one that gives a row for each token of the last batch, of (context, layer). Raises EngineError."""
    context = lib.llama_context_p_ctypes
    return (
        _exported(_SET_LAYER_INPUTS, (None, context, ctypes.c_uint32, ctypes.c_bool)),
        _exported(_GET_LAYER_INPUTS, (ctypes.POINTER(ctypes.c_float), context, ctypes.c_uint32)),
    )


def _exported(names: Sequence[str], types: Sequence[Any]) -> Any:
    """Return the function that libllama exports under one of `names`; `types` are those of result and arguments."""
    for name in names:
        if hasattr(lib._lib, name):  # noqa: SLF001
            function = getattr(lib._lib, name)  # noqa: SLF001
            function.restype, function.argtypes = types[0], types[1:]
            return function
    raise EngineError(f"This build of llama.cpp has no {names[0]}.", "Install llama-cpp-python again.")


def ggml_function(name: str, *types: Any) -> Any:
    """Return a function of ggml, which llama_cpp does not bind; `types` are those of its result and its arguments. Not
    every system resolves it through libllama. Raises EngineError if no library has it."""
    folder = Path(lib.__file__).parent / "lib"
    for library in (lib._lib, *(load_shared_library(part, folder) for part in ("ggml", "ggml-base"))):  # noqa: SLF001
        if hasattr(library, name):
            function = getattr(library, name)
            if types:
                function.restype, function.argtypes = types[0], types[1:]
            return function
    raise EngineError(f"This build of llama.cpp has no {name}.", "Install llama-cpp-python again.")


def registered_address(registry: int, name: str) -> int | None:
    """Return the address of a function that a backend of ggml offers by its registry, None where it has none."""
    by_name = ggml_function("ggml_backend_reg_get_proc_address", c_void_p, c_void_p, c_char_p)
    address: int | None = by_name(registry, name.encode())
    return address


def cpu_device() -> int:
    """Return ggml's device of the processor."""
    device: int = ggml_function("ggml_backend_dev_by_type", c_void_p, c_int)(_CPU_DEVICE)
    return device


def mark_as_weights(buffer: int) -> None:
    """Tell ggml that a buffer has weights, for which kernels of its type of buffer are used."""
    ggml_function("ggml_backend_buffer_set_usage", None, c_void_p, c_int)(buffer, _USAGE_WEIGHTS)


def has_weights(buffer: int) -> bool:
    """Return whether a buffer was marked as having weights, as those of a model are and those of a context are not."""
    return int(ggml_function("ggml_backend_buffer_get_usage", c_int, c_void_p)(buffer)) == _USAGE_WEIGHTS


def system_info() -> str:
    """Return the backends of this build, and the features with which those were built that have a choice, such as
    "CPU (AVX2, OPENMP), RPC"."""
    words: bytes = lib.llama_print_system_info()
    features = parse_system_info(words.decode("utf-8", "replace"))
    count, get = (
        ggml_function("ggml_backend_reg_count", c_size_t),
        ggml_function("ggml_backend_reg_get", c_void_p, c_size_t),
    )
    name_of = ggml_function("ggml_backend_reg_name", c_char_p, c_void_p)
    names = [name_of(get(index)).decode("utf-8", "replace") for index in range(count())]
    return ", ".join(f"{name} ({features[name]})" if features.get(name) else name for name in names)


def parse_system_info(text: str) -> dict[str, str]:
    """Return the features by backend in what `llama_print_system_info` returns: "CPU : AVX2 = 1 | OPENMP = 1 | "."""
    found: dict[str, list[str]] = {}
    features: list[str] = []
    for part in text.split("|"):
        before, colon, entry = part.rpartition(" : ")
        if colon:
            features = found.setdefault(before.strip(), [])
        name, _, value = (word.strip() for word in entry.partition("="))
        if name and value != "0":
            features.append(name if value == "1" else f"{name}={value}")
    return {backend: ", ".join(names) for backend, names in found.items()}


@dataclass(frozen=True, slots=True)
class Buffer:
    """A buffer: the `name` of its memory, its kind (model, KV, RS or compute), its bytes, exact to 0.01 MiB."""

    name: str
    kind: str
    n_bytes: int


def parse_buffer(line: str) -> Buffer | None:
    """Return the buffer that a line of llama.cpp's log reports, None for any other line."""
    match = _BUFFER_SIZE.search(line)
    return Buffer(match[1], match[2], round(float(match[3]) * _MIB)) if match else None


_NUMA_STRATEGIES = {
    NumaStrategy.DISTRIBUTE: lib.GGML_NUMA_STRATEGY_DISTRIBUTE,
    NumaStrategy.ISOLATE: lib.GGML_NUMA_STRATEGY_ISOLATE,
    NumaStrategy.NUMACTL: lib.GGML_NUMA_STRATEGY_NUMACTL,
}


@cache
def init_numa(strategy: NumaStrategy) -> None:
    """Spread the threads of all contexts by `strategy`, which cannot be taken back: ggml counts nodes once for a
    process. Call it before a model is loaded, for its file is mapped otherwise then."""
    if strategy is not NumaStrategy.OFF:
        lib.llama_numa_init(_NUMA_STRATEGIES[strategy])


def prompt_bytes(text: str) -> bytes:
    """Return `text` as UTF-8. Raises RequestError for text that is not Unicode or above 16 MiB."""
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise RequestError("The text contains a lone surrogate.", "Send valid Unicode.") from error
    if len(data) > MAX_PROMPT_BYTES:
        raise RequestError(f"The text has {len(data)} bytes.", f"Send at most {MAX_PROMPT_BYTES}.")
    return data


def tokenize(vocab: int, text: str, add_special: bool, parse_special: bool) -> list[int]:
    """Return llama.cpp's tokens of `text`. Raises as `prompt_bytes`."""
    data = prompt_bytes(text)
    size = len(data) + 8  # a token has at least one byte, except the special ones that are added
    tokens = (lib.llama_token * size)()
    n_tokens = lib.llama_tokenize(vocab, data, len(data), tokens, size, add_special, parse_special)
    if n_tokens < 0:
        raise EngineError("The text could not be tokenized.", "Send it in smaller parts.")
    return list(tokens[:n_tokens])


native_log()  # else llama.cpp prints each file that it loads
load_backends(ggml_function, library_folders())  # before anything asks for a device
