"""The models screen: what is here, what other programs hold, what could be fetched.

Owns what is listed and which row is chosen. The lists are `tui.model_lists`'; what may be done with a row is in
`tui.screens.model_row_commands`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, ClassVar

from textual import on
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Input, OptionList
from textual.worker import Worker

from app.job import Job
from tui.model_commands import MODEL_COMMANDS
from tui.model_lists import ModelLists
from tui.model_rows import ModelRow
from tui.resources import Resources
from tui.screens.model_row_commands import ModelRowCommands
from tui.widgets.model_detail import ModelDetail
from tui.widgets.model_list import ModelList
from tui.widgets.search_field import SearchField

__all__ = ["ModelsScreen"]


class ModelsScreen(ModelRowCommands):
    """Lists, a field to search by, and what the chosen row is; fulfils `tui.model_commands.ModelActions`."""

    CSS_PATH: ClassVar[Any] = ["place_screen.tcss", "models.tcss"]
    PLACE = "models"
    TABLE = MODEL_COMMANDS
    KEYS = ModelList.KEYS
    BINDINGS = MODEL_COMMANDS.bindings()

    class Changed(Message):
        """The lists have something new to show."""

    def __init__(self, resources: Resources) -> None:
        super().__init__(resources)
        self._lists = ModelLists(resources.connection, resources.jobs, self._post_changed)

    def body(self) -> Iterable[Widget]:
        yield SearchField(placeholder="/ searches: words of a name, here and on the hub", select_on_focus=False)
        yield ModelList()
        yield ModelDetail()

    def on_mount(self) -> None:
        self.rows.focus()
        self._show()
        self._begin(self._lists.recommend, "recommend")
        self.resources.jobs.on_end(self._job_ended)

    def on_screen_resume(self) -> None:
        """What is here may have changed while a person was elsewhere."""
        self._begin(self._lists.refresh, "here")

    @property
    def rows(self) -> ModelList:
        return self.query_one(ModelList)

    @property
    def field(self) -> SearchField:
        return self.query_one(SearchField)

    @property
    def row(self) -> ModelRow | None:
        return self._lists.row(self.rows.row_id)

    # What a person types and chooses

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        self._lists.narrow(event.value)
        self._begin(self._lists.search, "search")

    @on(SearchField.Left)
    def _left_field(self) -> None:
        self.rows.focus()

    @on(OptionList.OptionSelected)
    async def _selected(self) -> None:
        await self.choose()

    @on(OptionList.OptionHighlighted)
    def _highlighted(self) -> None:
        self.query_one(ModelDetail).show(self.row)

    @on(Changed)
    def _show(self) -> None:
        self.rows.show(self._lists.sections())
        self.query_one(ModelDetail).show(self.row)

    def type_words(self) -> None:
        """Go to the field for words."""
        self.set_focus(self.field)  # at once: the next key may be under way

    def look_again(self) -> None:
        """Fetch the lists anew, and look at what memory is free."""
        self._begin(partial(self._lists.refresh, is_fresh=True), "here")

    # Parts of these

    def _begin(self, work: Callable[[], Coroutine[None, None, None]], group: str) -> None:
        """Run `work` beside what goes on, in place of what its group does."""
        _: Worker[None] = self.run_worker(work, group=group, exclusive=True)

    def _job_ended(self, job: Job) -> None:
        """Bring the lists up to date with what was made."""
        if job.state == "done":
            self._begin(self._lists.refresh, "here")

    def _post_changed(self) -> None:
        self.post_message(self.Changed())
