from __future__ import annotations

import pytest

from tests.quantizer.gguf_files import tiny_llama


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return tiny_llama(tmp_path_factory.mktemp("m") / "tiny.gguf").read_bytes()
