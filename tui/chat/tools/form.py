"""The form that a server asks the person to fill in: a line for each of its fields."""

from __future__ import annotations

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.suggester import SuggestFromList
from textual.widgets import Input, Static

from app.common.terminal import printable, printable_line
from app.tools.server_requests import Form, FormValue, WrongFieldError
from quantizer.system.errors import UserError
from tui.widgets.dialogs import Dialog


class FormDialog(Dialog):
    """Asks until all fields have what they take; `values` are None until then, and after Esc."""

    CSS_PATH = "../../widgets/dialogs.tcss"  # relative to this file

    def __init__(self, form: Form) -> None:
        title = Text(f"{printable_line(form.server)} asks").markup
        super().__init__(title, "Enter goes on, and sends after the last", form.message)
        self.form = form
        self.values: dict[str, FormValue] | None = None
        self._was_sent = False
        self._inputs = [
            Input(
                field.default,
                placeholder=field.hint,
                compact=True,
                select_on_focus=False,
                suggester=SuggestFromList(field.options.values(), case_sensitive=False) if field.options else None,
            )
            for field in form.fields
        ]

    def fields(self) -> ComposeResult:
        with VerticalScroll(id="form"):
            for field, line in zip(self.form.fields, self._inputs, strict=True):
                about = f"{field.title}: {field.description}" if field.description else field.title
                yield Static(printable(about), markup=False)
                yield line
        yield Static("", markup=False, id="fault")

    def on_mount(self) -> None:
        self._inputs[0].focus()

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        """Go to the next field if this one takes what was typed. From the last one, and after that from each, go to the
        first that is wrong, else send."""
        event.stop()
        number = self._inputs.index(event.input)
        self._was_sent = self._was_sent or number + 1 == len(self._inputs)
        self._say("")
        if not self._was_sent:
            try:
                self.form.fields[number].value_of(event.value)
            except UserError as error:
                self._say(str(error))
            else:
                self._inputs[number + 1].focus()
            return
        typed = zip(self.form.fields, self._inputs, strict=True)
        try:
            self.values = self.form.values_of({field.name: line.value for field, line in typed})
        except WrongFieldError as error:
            self._say(str(error))
            self._inputs[self.form.fields.index(error.field)].focus()
        else:
            self.dismiss(None)

    def _say(self, fault: str) -> None:
        self.query_one("#fault", Static).update(printable(fault))
