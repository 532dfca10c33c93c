"""The planner behind the service, on the machine that the service runs on."""

from __future__ import annotations

from app.client.connection import Connection
from app.client.plan_report import PlanReport, report_of
from app.plan_wish import PlanWish

__all__ = ["PlannerClient"]


class PlannerClient:
    """What a service says that models come to. Every method raises as `ServiceClient` says."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def plan(self, wish: PlanWish) -> PlanReport:
        """Return what `wish` comes to. Raises the errors of a model that cannot be had, UsageError for nonsense."""
        return report_of(await self._connection.call("POST", "/api/localllm/plan", wish.as_json()))

    async def reload(self, wish: PlanWish) -> str:
        """Begin to load the model of `wish` so, in place of how it is loaded, and return its id without waiting.

        Answers under way fail. Raises as `plan`, and UsageError for a wish that is for another machine.
        """
        return str((await self._connection.call("POST", "/api/localllm/reload", wish.as_json()))["id"])
