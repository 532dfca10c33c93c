"""The objects of our own routes that are not values of `app.protocol`."""

from __future__ import annotations

from typing import Literal, TypeAlias

from typing_extensions import TypedDict

from app.protocol.job import Job

__all__ = [
    "JobList",
    "Log",
    "ModelId",
    "StaysUntil",
]

StayReason: TypeAlias = Literal["", "jobs-end"]


class ModelId(TypedDict):
    """A model that is being loaded."""

    id: str


class StaysUntil(TypedDict):
    """The event until which the service outlives the program that started it, empty for none."""

    stays_until: StayReason


class JobList(TypedDict):
    """Every job, oldest first."""

    jobs: list[Job]


class Log(TypedDict):
    """The log of a job."""

    log: str
