from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from app.client.launcher import stop_services
from app.service.server import listen
from app.settings.settings import Settings, load_settings


@pytest.fixture
async def settings(
    environment: Mapping[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> AsyncIterator[Settings]:
    """Settings of a user with a data folder and a port of his own; the service that is left is ended."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with listen("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    loaded = load_settings(environment=environment)
    own = replace(loaded, port=port, keep_service="10m", data_dir=tmp_path / "data", cache_dir=tmp_path / "cache")
    yield own
    await stop_services(own)
