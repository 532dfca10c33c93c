from __future__ import annotations

from pathlib import Path

import pytest

from app.client.service_client import ServiceClient
from app.protocol.errors import RequestError
from app.protocol.plan import PlanRequest
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.system.errors import UsageError
from tests.app.running import RunningService

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


@pytest.mark.parametrize("path", ["plan", "reload"])
def test_invalid_requests_are_no_failure_of_the_service(service: RunningService, path: str) -> None:
    response = service.http.post(f"/api/localllm/{path}", json={"kv_type": "q9"})
    assert (response.status_code, response.json()["error"]["kind"]) == (400, "UsageError")
