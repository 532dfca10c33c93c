"""Only `quantizer.system.files` opens files that somebody may have named or put somewhere: it waits for no FIFO."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MODE = re.compile(r"[rwxabt+]{1,4}")

# What else opens files, and what they are.
ELSEWHERE = {
    "app/chat/presets.py": "of the package",
    "app/cli/approval.py": "the terminal",
    "app/cli/calibration.py": "of the package",
    "app/cli/verbs/service.py": "the null device",
    "app/common/help_topics.py": "of the package",
    "app/common/standard_streams.py": "the null device",
    "app/engine/llama/host_memory.py": "of the kernel",
    "app/engine/media/decode.py": "the null device",
    "app/engine/media/sound_windows.py": "the null device",
    "app/launch/model_facts.py": "of the package",
    "app/library/hub/catalogue.py": "of the package",
    "app/library/local/model_sampling.py": "of the package",
    "app/library/local/placement.py": "made anew",
    "app/library/packages/wheel.py": "made anew",
    "app/sound/device_child.py": "made anew",
    "app/tools/file_access.py": "in folders of a chat, by descriptors, with checks of its own",
    "offload/devices/bandwidth.py": "past the system's cache, after the same check",
    "offload/devices/gpus.py": "of the kernel",
    "offload/devices/host.py": "of the kernel",
    "offload/devices/numa.py": "of the kernel",
    "quantizer/architectures/__init__.py": "of the package",
    "quantizer/system/files.py": "here",
    "quantizer/system/installation.py": "of the installation",
    "quantizer/system/memory_limit.py": "of the kernel",
    "quantizer/system/process.py": "of the kernel",
    "quantizer/system/sockets.py": "of the kernel",
    "quantizer/write/load_check.py": "made anew",
    "tui/models/lists.py": "made anew",
}


def opening_lines(source: str) -> Iterator[int]:
    """Yield the lines of calls that open a file by its path."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        named = node.func.id if isinstance(node.func, ast.Name) else ""
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        of_module = isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) in ("os", "io")
        modes = [word.value for word in node.args[:1] if isinstance(word, ast.Constant) and isinstance(word.value, str)]
        is_file = any(map(MODE.fullmatch, modes)) or any(word.arg in ("mode", "encoding") for word in node.keywords)
        reads = method in ("read_bytes", "read_text")
        opens = method == "FileIO" or (method == "open" and (of_module or is_file))
        if named in ("open", "FileIO") or reads or opens:
            yield node.lineno


@pytest.mark.slow
def test_no_other_module_opens_a_file_that_somebody_may_have_put_there() -> None:
    found = {
        path.relative_to(ROOT).as_posix(): lines
        for room in ("app", "offload", "quantizer", "tui")
        for path in sorted((ROOT / room).rglob("*.py"))
        if (lines := list(opening_lines(path.read_text(encoding="utf-8"))))
    }
    assert {name: lines for name, lines in found.items() if name not in ELSEWHERE} == {}
    assert sorted(found) == sorted(ELSEWHERE)  # and none is named in vain


def test_each_way_to_open_a_file_is_found() -> None:
    ways = (
        *("open(p)", "os.open(p, 0)", "io.open(p)", "io.FileIO(p)", "FileIO(p)", "p.open('rb')", "p.read_text()"),
        *("p.open(encoding='utf-8')", "p.read_bytes()", "p.open('r+b', buffering=0)"),
    )
    assert [way for way in ways if not list(opening_lines(way))] == []
    assert list(opening_lines("find_bar.open(text)\nrow.open('words')\nscales.open()")) == []
