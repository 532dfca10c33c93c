"""The library over HTTP: a service of its own over a folder and a hub that are thrown away."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.client.service_client import ServiceClient
from app.library.hub.catalogue import Role
from app.protocol.errors import RequestError
from app.protocol.library import LocalModel, LocalModels
from app.protocol.plan import PlanRequest
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.system.errors import UsageError, UserError
from tests.app.library.hub_repos import HubRepo
from tests.app.library.hub_server import HubServer
from tests.app.running import RunningService
from tests.app.small_models import small_model


@pytest.fixture(scope="module")
def hub(tiny_model: Path) -> Iterator[HubServer]:
    repo = HubRepo.of("org/tiny-GGUF", {"tiny-Q4_K_M.gguf": tiny_model, "tiny-Q8_0.gguf": tiny_model}, tags=["gguf"])
    with HubServer(repo) as hub:
        yield hub


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("user")


@pytest.fixture(scope="module")
def own(start_service: Callable[..., RunningService], hub: HubServer, folders: Path) -> RunningService:
    """A service that sees no folder of the user's but those of this test."""
    outside = {"HF_ENDPOINT": hub.url, "HF_HOME": str(folders / "hf"), "OLLAMA_MODELS": str(folders / "ollama")}
    outside |= {"HOME": str(folders), "HF_TOKEN": ""}
    return start_service(outside, data_dir=str(folders / "data"), cache_dir=str(folders / "cache"))


@pytest.fixture
def placed(folders: Path, tiny_model: Path) -> Iterator[Path]:
    """A model in the library."""
    path = folders / "data" / "models" / "org" / "repo" / "kept.gguf"
    path.parent.mkdir(parents=True)
    shutil.copy(tiny_model, path)
    yield path
    shutil.rmtree(folders / "data" / "models", ignore_errors=True)


async def _whole(client: ServiceClient) -> LocalModels:
    for _ in range(600):
        if (shelf := await client.library.models(external=True)).is_complete:
            return shelf
        await asyncio.sleep(0.05)
    raise AssertionError("the list never became complete")


async def test_models_are_listed_with_a_verdict_and_whether_they_are_loaded(own: RunningService, placed: Path) -> None:
    async with ServiceClient(own.url) as client:
        shelf = await _whole(client)
        models = {model.id: model for model in shelf.models}
        assert models["kept"].fit is not None
        assert models["kept"].fit.verdict == "fits"
        assert models["kept"].path == str(placed)
        assert (models["kept"].state, models["kept"].where) == ("unloaded", "library")
        assert models["guide"].fit is not None
        await client.load("kept")
        loaded = {model.id: model for model in (await client.library.models()).models}["kept"]
        assert loaded.loaded_as == "kept"
        assert loaded.state in ("loading", "ready")


async def test_a_damaged_file_is_listed_with_its_fault(own: RunningService, placed: Path) -> None:
    (placed.parent / "broken.gguf").write_bytes(b"GGUX\x03\x00\x00\x00")
    async with ServiceClient(own.url) as client:
        models = {model.id: model for model in (await _whole(client)).models}
    assert models["broken"].damaged
    assert models["broken"].fit is None


async def test_a_file_copied_into_the_models_folder_grows_and_is_served_by_its_name(
    own: RunningService, folders: Path
) -> None:
    loose = small_model(folders / "data" / "models" / "loose.gguf")
    whole = loose.read_bytes()
    loose.write_bytes(whole[:-9])
    async with ServiceClient(own.url) as client:
        shelf = await _whole(client)
        growing = {model.id: model for model in shelf.models}["loose"]
        loose.write_bytes(whole)
        complete = await _settled(client, "loose")
        served = await client.call("GET", "/v1/models")
        await client.library.remove("loose")
    assert shelf.folder == str(loose.parent)
    assert (growing.is_arriving, growing.damaged, growing.fit) == (True, "", None)
    assert (complete.is_arriving, complete.damaged, complete.architecture) == (False, "", "llama")
    assert "loose" in {model["id"] for model in served["data"]}
    assert (loose.parent.is_dir(), loose.exists()) == (True, False)


async def _settled(client: ServiceClient, name: str) -> LocalModel:
    for _ in range(600):
        model = {model.id: model for model in (await _whole(client)).models}[name]
        if not model.is_arriving:
            return model
        await asyncio.sleep(0.05)
    raise AssertionError("the copy never ended")


async def test_recommendations_need_no_network(own: RunningService, hub: HubServer) -> None:
    hub.inject("5xx", stage="list", times=9)
    n_before = len(hub.log)
    async with ServiceClient(own.url) as client:
        answer = await client.library.recommend()
    found = answer.models
    assert found
    assert [each.role for each in answer.recommendations] == list(Role)
    assert all(each.reference.endswith(f":{each.quant.name}") for each in found)
    assert len(hub.log) == n_before
    hub.injections.clear()


async def test_a_search_returns_every_quant_with_its_verdict(own: RunningService) -> None:
    async with ServiceClient(own.url) as client:
        (repo,) = await client.library.search("tiny", 3)
        assert (await client.library.search("missing-model")) == ()
    assert (repo.repo, repo.is_checkpoint, repo.problem) == ("org/tiny-GGUF", False, "")
    assert [quant.name for model in repo.models for quant in model.quants] == ["Q4_K_M", "Q8_0"]


async def test_a_failing_hub_is_reported_with_a_remedy(own: RunningService, hub: HubServer) -> None:
    hub.inject("5xx", stage="list", times=9)
    async with ServiceClient(own.url) as client:
        with pytest.raises(UserError, match="cannot be reached") as raised:
            await client.library.search("tiny")
        assert "works offline" in raised.value.remedy
        assert own.http.get("/api/localllm/search?words=tiny").status_code == 502
    hub.injections.clear()


async def test_a_search_ends_when_its_client_disconnects(own: RunningService, hub: HubServer) -> None:
    hub.inject("stall", stage="content", times=9)
    async with ServiceClient(own.url) as client:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await client.library.search("tiny")
        assert (await client.status()).version  # and holds up nothing
    hub.injections.clear()


async def test_a_search_for_nothing_is_refused(own: RunningService) -> None:
    async with ServiceClient(own.url) as client:
        with pytest.raises(RequestError):
            await client.library.search("  ")


async def _fetched(client: ServiceClient, reference: str) -> None:
    begun = await client.start_job("pull", {"reference": reference})
    *_, ended = [job async for job in client.watch_job(begun.id)]
    assert ended.state == "done", ended


async def test_a_newer_revision_is_found_when_asked_for_and_a_pull_fetches_it(
    own: RunningService, hub: HubServer, folders: Path, tiny_model: Path, tmp_path: Path
) -> None:
    hub.repos["org/moving-GGUF"] = repo = HubRepo.of("org/moving-GGUF", {"a/m-Q8_0.gguf": tiny_model}, tags=["gguf"])
    async with ServiceClient(own.url) as client:
        try:
            await _fetched(client, "org/moving-GGUF:Q8_0")
            (found,) = await client.library.updates()
            assert (found.state, found.repo, found.reference) == ("current", "org/moving-GGUF", "")
            other = small_model(tmp_path / "other.gguf")
            repo.put("a/m-Q8_0.gguf", other)
            n_before = len(hub.log)
            await client.library.models(external=True)
            assert len(hub.log) == n_before  # nobody asked
            (found,) = await client.library.updates(found.id)
            assert (found.state, found.reference) == ("newer", "org/moving-GGUF/a/m-Q8_0.gguf")
            assert (found.n_bytes, found.commit) == (other.stat().st_size, repo.commit)
            await _fetched(client, found.reference)
            assert [each.state for each in await client.library.updates()] == ["current"]
            assert await asyncio.to_thread(Path(found.path).read_bytes) == other.read_bytes()
            hub.inject("5xx", stage="api", times=9)
            with pytest.raises(UserError, match="cannot be reached"):
                await client.library.updates()
        finally:
            hub.injections.clear()
            del hub.repos["org/moving-GGUF"]
            shutil.rmtree(folders / "data" / "models", ignore_errors=True)


async def test_a_model_is_shown_in_printable_rows(own: RunningService, placed: Path) -> None:
    async with ServiceClient(own.url) as client:
        rows = dict(await client.library.show("kept"))
        with pytest.raises(ModelFileError):
            await client.library.show("gone")
    assert rows["architecture"] == "llama"
    assert rows["file"] == str(placed)


async def test_types_have_sizes_losses_and_verdicts(own: RunningService) -> None:
    async with ServiceClient(own.url) as client:
        types = {choice.quant.name: choice for choice in await client.library.types("guide")}
    assert types["Q8_0"].quant.n_bytes < types["F16"].quant.n_bytes
    assert types["Q4_K_M"].perplexity_loss == pytest.approx(0.1754)
    assert types["Q4_K_M"].quant.fit.verdict == "fits"


async def test_a_dry_run_lists_the_files_and_a_loaded_model_is_not_removed(own: RunningService, placed: Path) -> None:
    async with ServiceClient(own.url) as client:
        going = await client.library.removal("kept")
        assert going.paths == (str(placed),)
        assert _is_there(placed)
        await client.load(str(placed))
        with pytest.raises(RequestError, match="is loaded"):
            await client.library.remove("kept")
        own.wait_until(lambda _: _state(own, placed) == "ready")
        await client.library.unload("kept")
        assert _state(own, placed) == "unloaded"
        await client.library.remove("kept")
        assert not _is_there(placed)
        with pytest.raises(UsageError, match="built in"):
            await client.library.remove("guide")


async def test_a_file_outside_is_taken_in_by_a_link(own: RunningService, folders: Path, tiny_model: Path) -> None:
    outside = folders / "outside.gguf"
    shutil.copy(tiny_model, outside)
    async with ServiceClient(own.url) as client:
        assert await client.library.import_model(str(outside), "org/taken/in") == "in"
        models = {model.id: model for model in (await client.library.models()).models}
        assert models["in"].where == "library"
        again = own.http.post("/api/localllm/import", json={"source": str(outside), "name": "org/taken/in"})
        assert (again.status_code, again.json()["error"]["code"]) == (409, "model_exists")
        await client.library.remove("in")
    assert _is_there(outside)


async def test_a_loaded_model_stays_for_its_keep_alive(own: RunningService) -> None:
    async with ServiceClient(own.url) as client:
        model = (await client.status()).default_model
        await client.library.keep_alive(model, "5m")
        with pytest.raises(RequestError, match="not a duration"):
            await client.library.keep_alive(model, "soon")
        kept = own.http.post("/api/localllm/keep-alive", json={"model": model, "keep_alive": "-1"}).json()
    assert kept["expires_s"] is None


async def test_the_machine_is_reported_with_printable_rows(own: RunningService) -> None:
    async with ServiceClient(own.url) as client:
        checkup = await client.library.machine()
    assert [label for label, _ in checkup.rows][:2] == ["processor", "memory"]


def _is_there(path: Path) -> bool:
    return path.exists()


def _state(own: RunningService, path: Path) -> str:
    models = own.http.get("/api/localllm/library").json()["models"]
    return next(str(model["state"]) for model in models if model["path"] == str(path))


CARD = ("RTX 3060=12GiB",)
RAM = "32GiB@45GB/s"


async def test_the_default_model_is_planned_for_the_services_machine(service: RunningService) -> None:
    async with ServiceClient(service.url) as client:
        report = await client.plan(PlanRequest())
    assert report.model == "tiny"
    assert report.devices[-1].kind == "cpu"
    assert sum(device.layers for device in report.devices) == report.n_layers
    assert report.decode_tps is not None


async def test_layers_and_context_are_planned_as_requested(service: RunningService, tiny_model: Path) -> None:
    plan_request = PlanRequest(
        model=str(tiny_model), n_ctx=512, vram=CARD, ram=RAM, gpu_layers={"RTX 3060": 1}, is_full=True
    )
    async with ServiceClient(service.url) as client:
        report = await client.plan(plan_request)
    assert [(device.name, device.layers) for device in report.devices] == [("RTX 3060", 1), ("CPU", 2)]
    assert (report.setting.ctx, report.n_on_gpus, report.is_full) == (512, 1, True)
    assert len(report.curve) == report.n_layers + 1


@pytest.mark.parametrize(
    ("plan_request", "error"),
    [
        (PlanRequest(model="missing-model"), ModelFileError),
        (PlanRequest(n_ctx=-1), RequestError),
        (PlanRequest(n_ctx=63, is_full=True), RequestError),
        (PlanRequest(kv_type="q9"), UsageError),
    ],
    ids=["model", "context", "too little context", "cache"],
)
async def test_impossible_plans_are_refused(
    service: RunningService, plan_request: PlanRequest, error: type[Exception]
) -> None:
    async with ServiceClient(service.url) as client:
        with pytest.raises(error):
            await client.plan(plan_request)


@pytest.mark.slow
@pytest.mark.parametrize("path", ["plan", "reload"])
def test_invalid_requests_are_no_failure_of_the_service(service: RunningService, path: str) -> None:
    response = service.http.post(f"/api/localllm/{path}", json={"kv_type": "q9"})
    assert (response.status_code, response.json()["error"]["kind"]) == (400, "UsageError")
