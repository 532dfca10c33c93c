"""How every face talks to the service: `ServiceClient`, and the values that go in and come out."""

from app.client.chat import Completed, GenerationOptions, Message, TextDelta
from app.client.connection import error_of
from app.client.library import LibraryClient
from app.client.model_values import (
    Checkup,
    FoundModel,
    FoundRepo,
    HereModel,
    MachineProblem,
    ModelFit,
    Quant,
    Recommended,
    Removed,
    Shelf,
    TypeChoice,
)
from app.client.plan_report import DevicePlan, MeasuredRun, PlanChange, PlanRemedy, PlanReport, PlanSetting
from app.client.planner import PlannerClient
from app.client.remote_engine import RemoteEngine
from app.client.service_client import ServiceClient
from app.client.status import EngineCounters, ModelStatus, Occupancy, PlanBrief, ServiceStatus, Spread
from app.job import Job, JobFailure, JobKind, JobState
from app.plan_wish import PlanWish

__all__ = [
    "Checkup",
    "Completed",
    "DevicePlan",
    "EngineCounters",
    "FoundModel",
    "FoundRepo",
    "GenerationOptions",
    "HereModel",
    "Job",
    "JobFailure",
    "JobKind",
    "JobState",
    "LibraryClient",
    "MachineProblem",
    "MeasuredRun",
    "Message",
    "ModelFit",
    "ModelStatus",
    "Occupancy",
    "PlanBrief",
    "PlanChange",
    "PlanRemedy",
    "PlanReport",
    "PlanSetting",
    "PlanWish",
    "PlannerClient",
    "Quant",
    "Recommended",
    "RemoteEngine",
    "Removed",
    "ServiceClient",
    "ServiceStatus",
    "Shelf",
    "Spread",
    "TextDelta",
    "TypeChoice",
    "error_of",
]
