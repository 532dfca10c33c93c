"""The typed client of the service: `ServiceClient` and the values of its calls."""

from app.client.connection import error_of
from app.client.library import LibraryClient
from app.client.remote_engine import RemoteEngine
from app.client.service_client import PlannerClient, ServiceClient
from app.protocol.chat import Completed, GenerationOptions, Message, TextDelta
from app.protocol.job import Job, JobKind, JobState
from app.protocol.library import (
    HubModel,
    HubRepository,
    LocalModel,
    LocalModels,
    MachineProblem,
    MachineReport,
    ModelFit,
    Quant,
    Recommended,
    RemovalResult,
    TypeChoice,
)
from app.protocol.plan import (
    DevicePlan,
    MeasuredRun,
    Plan,
    PlanChange,
    PlanRemedy,
    PlanReport,
    PlanRequest,
    PlanSetting,
)
from app.protocol.status import EngineCounters, LatencySummary, ModelStatus, Occupancy, ServiceStatus

__all__ = [
    "Completed",
    "DevicePlan",
    "EngineCounters",
    "GenerationOptions",
    "HubModel",
    "HubRepository",
    "Job",
    "JobKind",
    "JobState",
    "LatencySummary",
    "LibraryClient",
    "LocalModel",
    "LocalModels",
    "MachineProblem",
    "MachineReport",
    "MeasuredRun",
    "Message",
    "ModelFit",
    "ModelStatus",
    "Occupancy",
    "Plan",
    "PlanChange",
    "PlanRemedy",
    "PlanReport",
    "PlanRequest",
    "PlanSetting",
    "PlannerClient",
    "Quant",
    "Recommended",
    "RemoteEngine",
    "RemovalResult",
    "ServiceClient",
    "ServiceStatus",
    "TextDelta",
    "TypeChoice",
    "error_of",
]
