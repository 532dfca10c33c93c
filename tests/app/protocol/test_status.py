"""The status as the client decodes it: plans in short, and an older service."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from app.protocol.codec import decode, encode
from app.protocol.plan import Plan, PlanChange, PlanRemedy
from app.protocol.status import ModelStatus, ServiceStatus
from tests.app.client.scripted_client import PLAN

MODEL: dict[str, Any] = {
    "id": "big",
    "state": "loading",
    "progress": 0.5,
    "n_ctx": 0,
    "notices": [],
    "error": None,
    "occupancy": None,
    "counters": None,
}


def status(**fields: Any) -> ModelStatus:
    data = {"version": "1", "default_model": "big", "models": [MODEL | fields]}
    return decode(ServiceStatus, data).models[0]


def test_a_plan_survives_and_counts_its_layers() -> None:
    (cpu,) = PLAN.devices
    gpu, igpu = replace(cpu, kind="gpu", layers=12), replace(cpu, kind="integrated", layers=8)
    remedies = tuple(PlanRemedy(what, None, "", PlanChange()) for what in ("quantize to Q4_K_M", "--ctx 4096"))
    plan = replace(PLAN, n_layers=33, devices=(gpu, igpu, cpu), warnings=("20 fit.", "Another."), remedies=remedies)
    found = status(plan=encode(plan)).plan
    assert isinstance(found, Plan)
    assert (found.n_on_gpus, found.n_layers) == (20, 33)
    assert (found.warning, found.first_remedy) == ("20 fit.", "quantize to Q4_K_M")


def test_a_model_without_a_plan_and_an_older_service_have_none() -> None:
    assert status(plan=None).plan is None
    assert (status().plan, status().n_bytes, status().shares_with) == (None, 0, ())


def test_a_model_names_the_others_that_share_its_engine() -> None:
    assert status(shares_with=["small"]).shares_with == ("small",)
