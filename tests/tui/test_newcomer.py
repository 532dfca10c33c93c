"""The first run: from the first start to an answer of a downloaded model in at most six keys.

The real service in its own process, with jobs and the test hub; only the engine is fake.
"""

from __future__ import annotations

import pytest

from app.client.service_client import ServiceClient
from app.connection import ServiceConnection, local_service
from app.library.hub.catalogue import read_catalogue
from app.settings.settings import Settings
from tests.app.library.hub_repos import HubRepo
from tests.app.library.hub_server import HubServer
from tests.quantizer.gguf_files import tiny_llama
from tui.app import LocalllmApp
from tui.models.first_run import is_first_run

pytestmark = pytest.mark.slow

MOST_KEYS = 6
TEMPLATE = "{% for message in messages %}{{ message.content }}\n{% endfor %}"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub that has every model of the catalogue, each a tiny one."""
    tiny = tiny_llama(tmp_path / "tiny.gguf", lambda writer: writer.add_chat_template(TEMPLATE))
    models = read_catalogue().models
    repos = {model.repo: {f"{model.name}-{quant.name}.gguf": tiny for quant in model.quants} for model in models}
    with HubServer(*(HubRepo.of(repo, files) for repo, files in repos.items())) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        monkeypatch.setenv("HF_TOKEN", "")
        yield hub


@pytest.mark.usefixtures("hub")
async def test_a_newcomer_talks_with_a_downloaded_model_after_at_most_six_keys(tmp_path, user_of):
    settings = Settings(engine="fake", port=0, data_dir=tmp_path / "data", cache_dir=tmp_path / "cache")
    keys: list[str] = []
    assert is_first_run(settings)
    async with ServiceConnection(local_service(settings), settings.model) as connection:
        app = LocalllmApp(connection, settings=settings, is_welcoming=is_first_run(settings))
        async with app.run_test(size=(80, 24), notifications=True) as pilot:
            user = user_of(pilot)

            async def presses(key: str) -> None:
                keys.append(key)
                await user.presses(key)

            await user.sees("Nothing leaves it")
            service = await connection.service()
            assert isinstance(service, ServiceClient)
            await service.library.recommend()  # however long a busy machine takes to look at itself
            await user.sees("good at", "chat")
            await presses("down")
            await presses("enter")
            await user.sees("Downloading", "guide  ● ready")  # the guide is available meanwhile
            (job,) = await service.jobs()
            states = [each.state async for each in service.watch_job(job.id)]
            assert states[-1] == "done"
            await user.sees("Ctrl+T chats with the new model")
            await presses("ctrl+t")
            await user.no_longer_sees("guide  ●")
            await user.sees("ready")
            await presses("f2")
            await user.sees("a second")
            (fetched,) = settings.models_dir.glob("*/*/*.gguf")
            here = {model.loaded_as: model for model in (await service.library.models()).models if model.loaded_as}
            assert here[connection.state.model].path == str(fetched)
    assert len(keys) <= MOST_KEYS
    assert not is_first_run(settings)
