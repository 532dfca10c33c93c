"""The parts of a plan that only show: devices as bars, and the curve of speeds. Each draws itself anew in its size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.app import RenderResult
from textual.content import Content
from textual.widget import Widget

from app.terminal import printable
from tui.plan_words import device_lines
from tui.speed_curve import curve_lines

if TYPE_CHECKING:
    from app.client import PlanReport

__all__ = ["DeviceBars", "SpeedCurve"]


class DeviceBars(Widget):
    """Two rows a device, and one of signs."""

    def __init__(self) -> None:
        super().__init__()
        self._report: PlanReport | None = None

    def show(self, report: PlanReport) -> None:
        """Draw the devices of `report`."""
        is_as_tall = self._report is not None and len(self._report.devices) == len(report.devices)
        self._report = report
        self.styles.height = 2 * len(report.devices) + 1
        self.refresh(layout=not is_as_tall)

    def render(self) -> RenderResult:
        if self._report is None:
            return ""
        lines = device_lines(self._report, self.content_size.width)
        return Content(printable("\n".join(lines)))


class SpeedCurve(Widget):
    """Tok/s against layers on the fastest GPU."""

    def __init__(self) -> None:
        super().__init__()
        self._report: PlanReport | None = None
        self._n_fitting: int | None = None

    def show(self, report: PlanReport, n_fitting: int | None) -> None:
        """Draw the curve of `report`; `n_fitting` layers are what the planner puts on GPUs by itself."""
        self._report, self._n_fitting = report, n_fitting
        self.refresh()

    def render(self) -> RenderResult:
        if self._report is None:
            return ""
        size = self.content_size
        return Content(printable("\n".join(curve_lines(self._report, self._n_fitting, size.width, size.height))))
