"""The question before a call of a tool in the scrollback: nothing else is printed while it waits."""

from __future__ import annotations

from app.cli.approval import TerminalApprover
from app.tools.approval import ApprovalQuestion, Decision
from tui.inline.scrollback import Scrollback


class ScrollbackApprover:
    """Implements `app.tools.approval.Approver`."""

    def __init__(self, scrollback: Scrollback) -> None:
        self._scrollback = scrollback
        self._terminal = TerminalApprover(scrollback.interrupt)

    async def ask(self, question: ApprovalQuestion) -> Decision:
        """Return what the person types."""
        self._scrollback.is_asking = True
        try:
            return await self._terminal.ask(question)
        finally:
            self._scrollback.is_asking = False
