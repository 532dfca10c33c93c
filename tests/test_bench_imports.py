"""Whether what nothing runs by itself still finds what it imports."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

_ROOT = Path(__file__).parents[1]
_OURS = ("app", "assets", "offload", "quantizer", "tests", "tui")
_NOT_INSTALLED = ("torch", "transformers")  # of the dependency group `train`


def _missing(path: Path) -> Iterator[str]:
    """Yield the names that the file at `path` imports of this repository and that are not there."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom) or (node.module or "").partition(".")[0] not in _OURS:
            continue
        assert node.module is not None
        try:
            module = importlib.import_module(node.module)
        except ModuleNotFoundError as error:
            if error.name in _NOT_INSTALLED:
                continue
            yield f"{path.name}: {node.module}"
            continue
        for alias in node.names:
            is_module = Path(_ROOT, *node.module.split("."), f"{alias.name}.py").is_file()
            if not hasattr(module, alias.name) and not is_module:
                yield f"{path.name}: {node.module}.{alias.name}"


@pytest.mark.parametrize("folder", ["bench", "battery"])
def test_benchmarks_import_only_what_exists(folder: str) -> None:
    missing = [text for path in sorted((_ROOT / "tests" / folder).rglob("*.py")) for text in _missing(path)]
    assert not missing
