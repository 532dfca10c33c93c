"""The objects of our own routes around the values of `app.protocol`."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict

from app.protocol.job import Job
from app.protocol.library import HubRepository, Recommendation, TypeChoice

__all__ = ["JobList", "Log", "ModelId", "Recommendations", "Repositories", "StaysUntil", "Types"]


class ModelId(TypedDict):
    """A model that is being loaded."""

    id: str


class StaysUntil(TypedDict):
    """The event until which the service outlives the program that started it, empty for none."""

    stays_until: Literal["", "jobs-end"]


class JobList(TypedDict):
    """Every job, oldest first."""

    jobs: list[Job]


class Log(TypedDict):
    """The log of a job."""

    log: str


class Recommendations(TypedDict):
    """A recommendation for each role."""

    recommendations: list[Recommendation]


class Repositories(TypedDict):
    """Repositories of the hub."""

    repositories: list[HubRepository]


class Types(TypedDict):
    """Every type that the model could be quantized to."""

    types: list[TypeChoice]
