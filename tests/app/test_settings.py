from __future__ import annotations

from pathlib import Path

import pytest

from app.settings import load_settings
from quantizer.errors import UsageError


@pytest.mark.parametrize(("text", "value"), [("true", True), ("1", True), ("False", False), ("0", False)])
def test_a_switch_is_read_from_the_environment_as_it_is_written_there(tmp_path: Path, text: str, value: bool) -> None:
    environment = {"LOCALLLM_CONFIG": str(tmp_path / "none.toml"), "LOCALLLM_CONTEXT_SHIFT": text}
    assert load_settings({}, environment).context_shift is value


def test_a_switch_that_is_neither_on_nor_off_is_refused(tmp_path: Path) -> None:
    environment = {"LOCALLLM_CONFIG": str(tmp_path / "none.toml"), "LOCALLLM_CONTEXT_SHIFT": "perhaps"}
    with pytest.raises(UsageError, match="context_shift"):
        load_settings({}, environment)
