"""The line below the composer: how full the context is, what the draft adds to it, and what the chat's answers are made
with. The model and what it is at are in the header."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.content import Content
from textual.widgets import Static

from app.chat.activity import BAR_CELLS, EMPTY, FULL, full_cells
from app.chat.backend import ConnectionState
from app.chat.conversation import ChatSettings
from app.chat.sampling_options import template_of, think_of, valid_options
from app.chat.state import AnswerFigures
from app.chat.tool_switches import tools_in_short
from app.common.terminal import printable_line
from quantizer.figures import format_number
from tui.chat.composer.context_forecast import ContextForecast
from tui.design.words import short_count

if TYPE_CHECKING:
    from app.protocol.plan import Plan

_TIGHT = 0.8  # of the context
_GAP = "     "
_OWN_CHIPS = ("temperature", "think", "template")
_CHIP_CHARACTERS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFacts:
    """What the line says: the tokens in the context, of `n_ctx` (0: unknown), those that the draft adds, and words
    about the settings, the most important first. `warning` is about the model's place, `reading` how much of the draft
    is read before it is sent."""

    n_tokens: int = 0
    is_estimated: bool = False
    n_ctx: int = 0
    n_draft: int = 0
    n_uncounted: int = 0
    chips: tuple[str, ...] = ()
    warning: str = ""
    reading: str = ""

    def content(self, n_cells: int) -> Content:
        """Return as much of the line as fits into `n_cells`: the bar, then whole chips."""
        line = self._context()
        if self.warning:
            line = Content.assemble(line, _GAP, (f"▲ {self.warning}", "$text-warning"))
        separator: str | Content = _GAP
        for chip in filter(None, (self.reading, *self.chips)):
            longer = Content.assemble(line, separator, (chip, "$text-muted"))
            if longer.cell_length > n_cells:
                break
            line, separator = longer, Content.styled(" · ", "$faint")
        return line

    def _context(self) -> Content:
        about = "≈" if self.is_estimated or self.n_draft else ""
        added = f" + {short_count(self.n_draft)}" if self.n_draft else ""
        more = f", {self.n_uncounted} not counted" if self.n_uncounted else ""
        if not self.n_ctx:
            return Content.styled(f"{about}{short_count(self.n_tokens)}{added} tokens{more}", "$text-muted")
        share, whole = self.n_tokens / self.n_ctx, (self.n_tokens + self.n_draft) / self.n_ctx
        color, word = "$text-muted", ""
        if whole > 1:
            color, word = "$text-error", " · too long"
        elif whole >= _TIGHT:
            color, word = "$text-warning", " · full" if whole == 1 else " · nearly full"
        n_used, n_whole = full_cells(share), max(full_cells(whole), full_cells(share))
        figures = f" {about}{short_count(self.n_tokens)}{added} of {short_count(self.n_ctx)}{more}{word}"
        return Content.assemble(
            (FULL * n_used, "$text-accent" if color == "$text-muted" else color),
            (FULL * (n_whole - n_used), "$faint" if color == "$text-muted" else color),
            (EMPTY * (BAR_CELLS - n_whole), "$faint"),
            (figures, color),
        )


def chat_facts(
    connection: ConnectionState,
    figures: AnswerFigures,
    settings: ChatSettings,
    forecast: ContextForecast | None = None,
    reading: str = "",
) -> ChatFacts:
    """Return what the line says; `figures` have the context of the shown branch, `forecast` that after the draft."""
    n_draft = 0 if forecast is None else max(0, forecast.n_tokens - figures.n_context_tokens)
    is_counted_otherwise = figures.n_context_tokens > 0 and figures.model != connection.model
    return ChatFacts(
        n_tokens=figures.n_context_tokens,
        is_estimated=figures.is_context_estimated or is_counted_otherwise,
        n_ctx=connection.n_ctx,
        n_draft=n_draft,
        n_uncounted=0 if forecast is None else forecast.n_uncounted,
        chips=_chips(connection, settings),
        warning=_placed(connection.plan),
        reading=reading,
    )


def _chips(connection: ConnectionState, settings: ChatSettings) -> tuple[str, ...]:
    options = valid_options(settings.options)
    others = {name: value for name, value in options.items() if name not in _OWN_CHIPS}
    temperature = ""
    if isinstance(chosen := options.get("temperature"), int | float):
        temperature = f"temperature {format_number(chosen)}"
    elif connection.sampling is not None and (stated := connection.sampling.stated.get("temperature")) is not None:
        temperature = f"temperature {format_number(stated)} (model's)"
    shown = [format_number(value) if isinstance(value, float) else str(value) for value in others.values()]
    only = f"{next(iter(others))} {shown[0]}" if len(others) == 1 else ""
    template, tools, think = template_of(options), tools_in_short(settings.tools), think_of(options)
    chips = (
        "system prompt" if settings.system else "",
        temperature,
        f"tools: {tools}" if tools else "",
        f"think {think}" if think else "",
        f"template {template}" if template else "",
        only if 0 < len(only) <= _CHIP_CHARACTERS else f"{len(others)} options" if others else "",
    )
    return tuple(printable_line(chip) for chip in chips if chip)


def _placed(plan: Plan | None) -> str:
    """Return which part of a model is not where it should be, empty where all is well."""
    if plan is None or not plan.is_unfit:
        return ""
    part = f"GPU {plan.n_on_gpus} of {plan.n_layers}" if plan.n_on_gpus and plan.n_layers else "too large"
    return f"{part}: F7 helps"


class StateLine(Static):
    """As much of the facts of a chat as fits into a row. Its size is fixed, so that a change redraws one row and lays
    out nothing; without a change nothing is drawn."""

    def __init__(self) -> None:
        super().__init__(markup=False)
        self._shown = Content()
        self.facts = ChatFacts()

    def show(self, facts: ChatFacts) -> None:
        self.facts = facts
        content = facts.content(self.content_size.width or 76)
        if content != self._shown:
            self._shown = content
            self.update(content, layout=False)

    def on_resize(self) -> None:
        self.show(self.facts)
