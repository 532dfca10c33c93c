"""The inputs that are kept for each target, `corpus/NAME.jsonl`: few, small, and each reaching what no other does.

A file has an input a line, the shortest first: a JSON string of what is UTF-8, or an object with its compressed bytes
in Base64 where that is shorter.
"""

from __future__ import annotations

import base64
import json
import sys
import zlib
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any

from tests.battery.fuzz.target import Reader, Target, attempt

__all__ = ["Arc", "arcs_of", "kept_inputs", "read_corpus", "smallest_cover", "write_corpus"]

_FOLDER = Path(__file__).parent / "corpus"
_ROOT = Path(__file__).parents[3]
Arc = tuple[str, int, int]  # a file, a line in it and the line before it; 0 at the begin of a function


def read_corpus(target: Target) -> list[bytes]:
    """Return the inputs that are kept for `target`, none where there is no file."""
    path = _FOLDER / f"{target.name}.jsonl"
    return [_read(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


def write_corpus(target: Target, inputs: Iterable[bytes]) -> None:
    lines = sorted(map(_written, inputs), key=lambda line: (len(line), line))
    _FOLDER.mkdir(exist_ok=True)
    (_FOLDER / f"{target.name}.jsonl").write_text("".join(f"{line}\n" for line in lines), "utf-8", newline="\n")


def _read(line: str) -> bytes:
    value = json.loads(line)
    return value.encode() if isinstance(value, str) else zlib.decompress(base64.b64decode(value["zlib"]))


def _written(data: bytes) -> str:
    packed = json.dumps({"zlib": base64.b64encode(zlib.compress(data, 9)).decode()})
    try:
        text = json.dumps(data.decode())
    except UnicodeDecodeError:
        return packed
    return min(text, packed, key=len)


def kept_inputs(target: Target) -> list[bytes]:
    """Return the seeds of `target` and its corpus, each once."""
    return list(dict.fromkeys((*target.seeds(), *read_corpus(target))))


def arcs_of(target: Target, read: Reader, data: bytes) -> frozenset[Arc]:
    """Return the arcs between lines of the target's packages that an input takes."""
    found: set[Arc] = set()
    prefixes = tuple(str(_ROOT / package.replace(".", "/")) for package in target.packages)

    def trace(frame: FrameType, _event: str, _value: Any) -> Any:
        name, before = frame.f_code.co_filename, 0
        if not name.startswith(prefixes):
            return None

        def local(frame: FrameType, event: str, _value: Any) -> Any:
            nonlocal before
            if event == "line":
                found.add((name, frame.f_lineno, before))
                before = frame.f_lineno
            return local

        return local

    former = sys.gettrace()
    sys.settrace(trace)
    try:
        attempt(target, read, data)
    finally:
        sys.settrace(former)
    return frozenset(found)


def smallest_cover(
    target: Target, read: Reader, inputs: Iterable[bytes], max_bytes: int
) -> tuple[list[bytes], set[Arc], set[Arc]]:
    """Return inputs whose lines take at most `max_bytes` and that take every arc that `inputs` take, these arcs, and
    those of all. Where that is too little room, those with the most arcs of their own for their size stay."""
    taken = {data: arcs_of(target, read, data) for data in dict.fromkeys(inputs)}
    kept: list[bytes] = []
    covered: set[Arc] = set()
    left = {data: set(arcs) for data, arcs in taken.items()}
    sizes = {data: len(_written(data)) for data in taken}
    n_left = max_bytes
    while left:
        best = max(left, key=lambda data: (len(left[data]) / (sizes[data] + 32), -len(data), data))
        new = left.pop(best)
        if not new:
            break
        if sizes[best] <= n_left:
            kept.append(best)
            covered |= new
            n_left -= sizes[best]
            for arcs in left.values():
                arcs -= new
    return kept, covered, set[Arc]().union(*taken.values())
