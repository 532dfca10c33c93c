from __future__ import annotations

from typing import Any

from app.client.status import status_of

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
PLAN = {
    "verdict": "partial",
    "layers": 33,
    "devices": [{"kind": "gpu", "layers": 12}, {"kind": "integrated", "layers": 8}, {"kind": "cpu", "layers": 13}],
    "warnings": ["20 of 33 layers fit.", "Another."],
    "remedies": [{"what": "quantize to Q4_K_M"}, {"what": "--ctx 4096"}],
}


def status(**fields: Any) -> Any:
    data = {"version": "1", "default_model": "big", "models": [MODEL | fields]}
    return status_of(data).models[0]


def test_a_plan_is_told_in_short() -> None:
    brief = status(plan=PLAN).plan
    assert (brief.verdict, brief.n_on_gpus, brief.n_layers) == ("partial", 20, 33)
    assert (brief.warning, brief.first_remedy) == ("20 of 33 layers fit.", "quantize to Q4_K_M")


def test_a_model_without_a_plan_and_an_older_service_have_none() -> None:
    assert status(plan=None).plan is None
    assert (status().plan, status().n_bytes, status().shares_with) == (None, 0, ())


def test_a_model_tells_who_else_holds_its_engine() -> None:
    assert status(shares_with=["small"]).shares_with == ("small",)
