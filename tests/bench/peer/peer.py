"""llama-server, of llama.cpp or of ik_llama.cpp, as a benchmark holds it: flags worth comparing, start, end.

Owns the process and its flags. Knows nothing of what it is asked.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bench.served import free_port

__all__ = [
    "ATTENTION",
    "DEFAULT",
    "IK_ATTENTION",
    "IK_FLAGS",
    "IK_SLOTS",
    "IK_SPECULATION",
    "PEER_FLAGS",
    "SLOTS",
    "SPECULATION",
    "serve_peer",
]

DEFAULT = "default"
_END_TIMEOUT_S = 30.0
# Its lookups in the text so far; the lengths of their drafts are its defaults.
_SPEC_TYPES = ("ngram-simple", "ngram-map-k", "ngram-mod", "ngram-cache")

# By name; what is not said is llama-server's own choice: flash attention on a CPU too, four slots that share the cells.
PEER_FLAGS: dict[str, tuple[str, ...]] = {
    DEFAULT: (),
    "-fa off": ("-fa", "off"),
    "-np 8": ("-np", "8"),
    "-fa off -np 8": ("-fa", "off", "-np", "8"),
    **{f"-fa off {name}": ("-fa", "off", "--spec-type", name) for name in _SPEC_TYPES},
    **{name: ("--spec-type", name) for name in _SPEC_TYPES},
}
ATTENTION = (DEFAULT, "-fa off")
SLOTS = (*ATTENTION, "-np 8", "-fa off -np 8")
SPECULATION = (DEFAULT, *(f"-fa off {name}" for name in _SPEC_TYPES))

# Those of ik_llama.cpp's server, where fused attention, fused experts and a prompt cache are on unless switched off. It
# repacks weights as it loads them (-rtr), has one slot by default, and each of several has its share of the cells.
IK_FLAGS: dict[str, tuple[str, ...]] = {
    "ik": (),
    "ik -rtr": ("-rtr",),
    "ik -np 8": ("-np", "8"),
    "ik -rtr -np 8": ("-rtr", "-np", "8"),
    "ik ngram-simple": ("--spec-type", "ngram-simple"),
    "ik ngram-mod": ("--spec-type", "ngram-mod"),
}
IK_ATTENTION = ("ik", "ik -rtr")
IK_SLOTS = (*IK_ATTENTION, "ik -np 8", "ik -rtr -np 8")
IK_SPECULATION = ("ik", "ik ngram-simple", "ik ngram-mod")


@contextmanager
def serve_peer(binary: Path, model: Path, folder: Path, flags: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    """Serve `model` with `flags` and yield the address, which may not answer yet, and the id of the process.

    Its log lies in `folder`.
    """
    port = free_port()
    command = (str(binary), "-m", str(model), "--host", "127.0.0.1", "--port", str(port), *flags)
    with (
        (folder / "llama-server.log").open("ab") as log,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log) as process,
    ):
        try:
            yield f"http://127.0.0.1:{port}", process.pid
        finally:
            process.terminate()
            try:
                process.wait(_END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
