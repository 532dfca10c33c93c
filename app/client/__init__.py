"""How every face talks to the service: `ServiceClient`, and the values that go in and come out."""

from app.client.chat import Completed, GenerationOptions, Message, TextDelta
from app.client.connection import error_of
from app.client.remote_engine import RemoteEngine
from app.client.service_client import ServiceClient
from app.client.status import EngineCounters, ModelStatus, Occupancy, ServiceStatus, Spread
from app.job import Job, JobFailure, JobKind, JobState

__all__ = [
    "Completed",
    "EngineCounters",
    "GenerationOptions",
    "Job",
    "JobFailure",
    "JobKind",
    "JobState",
    "Message",
    "ModelStatus",
    "Occupancy",
    "RemoteEngine",
    "ServiceClient",
    "ServiceStatus",
    "Spread",
    "TextDelta",
    "error_of",
]
