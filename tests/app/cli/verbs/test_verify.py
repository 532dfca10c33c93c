from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.app.small_models import small_model

Run = Callable[..., Any]


def test_damage_is_reported_and_exits_with_1(localllm: Run, models: Path) -> None:
    path = small_model(models / "me" / "x" / "m.gguf")
    assert localllm("verify", "m").out == "m  recorded\n"
    assert localllm("verify", "m").out == "m  sound\n"
    data = path.read_bytes()
    with path.open("r+b") as file:
        file.write(data[:-1] + b"?")
    ran = localllm("verify", "--json")
    assert ran.status == 1
    guide, model = ran.json["models"]
    assert list(model) == ["id", "path", "state", "sha256", "reason"]
    assert (guide["state"], model["state"]) == ("recorded", "damaged")
    assert localllm("verify", "m", "--record").status == 0
    assert localllm("verify").status == 0


def test_show_prints_a_recorded_hash(localllm: Run, models: Path) -> None:
    small_model(models / "me" / "x" / "m.gguf")
    assert "unknown until `localllm verify`" in localllm("show", "m").out
    localllm("verify", "m")
    assert len(localllm("show", "m", "--json").json["sha256"][0]) == 64
