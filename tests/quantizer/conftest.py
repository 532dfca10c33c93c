"""Fixtures of the quantizer's tests; the builders lie beside this file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.quantizer.gguf_files import tiny_llama


@pytest.fixture(scope="session")
def llama_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A loadable F16 Llama of 270 KB."""
    return tiny_llama(tmp_path_factory.mktemp("gguf") / "tiny.gguf")
