"""The chat's status line and settings as text; pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size

from app.chat.backend import ConnectionState
from app.chat.branches import Ending, TranscriptEntry, empty_answer_text
from app.chat.conversation import ChatSettings, Scalar
from app.chat.sampling_options import valid_options
from app.chat.state import AnswerFigures
from app.common.terminal import printable_line
from app.library.local.model_files import id_of

if TYPE_CHECKING:
    from app.protocol.chat import Completed
    from app.protocol.plan import Plan
    from app.protocol.sampling import ModelSampling


_UNFIT = ("partial", "wont_run")  # verdicts of a plan: some of the model is read over a slower way at every token
_SEPARATOR = " · "
# By the connection's phase, or what an answer is at.
_LABELS = {
    "idle": "starting",
    "starting": "starting the service",
    "loading": "loading",
    "ready": "ready",
    "unloaded": "unloaded when idle, loads with the next question",
    "reading": "processing the prompt",
    "answering": "answering",
    "asking": "waits for your decision",
    "summarising": "summarising the chat",
    "failed": "not available",
}
_ENDINGS = {
    Ending.COMPLETE: "",
    Ending.CUT: "token limit reached",
    Ending.STOPPED: "stopped",
    Ending.FAILED: "incomplete",
}
_FIGURES = ("decode_tokens_per_s", "time_to_first_token_s", "n_prompt_tokens", "n_output_tokens")
_BAR_CELLS = 10
_OPTION_CHARACTERS = 60
_USUAL_OPTIONS = ("temperature", "top_k", "top_p", "min_p")
_MODEL_CELLS = 24
_MODEL_END_CELLS = 10  # of those, for the size and the type


def settings_line(settings: ChatSettings, sampling: ModelSampling | None = None) -> str:
    """Return one line: the options that are set, what an answer is sampled with besides by `sampling` (None where the
    engine or a model that answers later decides that), and the system prompt if there is one."""
    texts = {name: printable_line(str(value)) for name, value in valid_options(settings.options).items()}
    most = _OPTION_CHARACTERS
    set_here = [f"{name} {text if len(text) <= most else f'{text[: most - 1]}…'}" for name, text in texts.items()]
    defaults = f"by default {_defaults_text(sampling, texts)}" if sampling else "the model's own sampling"
    line = "; ".join(filter(None, (", ".join(set_here), "" if set_here and not sampling else defaults)))
    return f"{line}; system prompt: {settings.system}" if settings.system else line


def _defaults_text(sampling: ModelSampling, given: Collection[str]) -> str:
    """Return the options that are not `given` as the model has them: the usual ones, and what others than us decide."""
    shown = {
        name: default
        for name, default in sampling.options.items()
        if name not in given and (name in _USUAL_OPTIONS or default.origin != "localllm")
    }
    return ", ".join(f"{name} {default.value:g} ({default.origin})" for name, default in shown.items())


def presets_text(own: Mapping[str, ChatSettings], shipped: Mapping[str, ChatSettings]) -> str:
    """Return a list of the presets: the person's own, then those that ship and have no namesake."""
    lines = [f"{name}: {settings_line(own[name])}" for name in own]
    lines += [f"{name}: {settings_line(shipped[name])} (ships with localllm)" for name in shipped if name not in own]
    return "\n".join(["/preset NAME, one of:", *lines, "/options saves another."])


def templates_text(templates: Iterable[tuple[str, str]], chosen: str) -> str:
    lines = [f"{'•' if name == chosen else ' '} {name}: {meaning}" for name, meaning in templates]
    return "\n".join(["/template NAME, one of:", *lines])


def prompts_text(own: Sequence[str], shipped: Iterable[str], folder: Path) -> str:
    """Return a list of the prompts: the person's own, then those that ship and have no namesake."""
    lines = [*map(printable_line, own), *(f"{name} (ships with localllm)" for name in shipped if name not in own)]
    return "\n".join(["/prompt NAME, one of:", *lines, f"Yours are texts NAME.md or NAME.txt in {folder}."])


def answer_line(entry: TranscriptEntry) -> str:
    """Return the line below an answer: the model that wrote it, its figures if shown, and how it ended."""
    message = entry.message
    if entry.is_running:
        ending = "" if message.content or message.reasoning else "waiting for the answer"
    else:
        ending = empty_answer_text(entry) or _ENDINGS[entry.ending]
    figures = figures_text(message.stats) if entry.has_figures and not entry.is_running else ""
    return _SEPARATOR.join(filter(None, (shortened_model(printable_line(message.model)), figures, ending)))


def figures_text(stats: Mapping[str, Scalar]) -> str:
    rate, first_s, n_prompt, n_output = (_number(stats.get(name)) for name in _FIGURES)
    parts = (
        f"{rate:.1f} tok/s" if rate > 0 else "",
        f"first token {first_s:.2f} s" if first_s > 0 else "",
        f"{n_prompt:.0f} tokens in" if n_prompt > 0 else "",
        f"{n_output:.0f} tokens out" if n_output > 0 else "",
    )
    return _SEPARATOR.join(filter(None, parts))


def _number(value: Scalar | None) -> float:
    """Return a stored figure, 0 for anything else: an imported chat may hold anything."""
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The values of the status line; None is unknown. `activity` is a connection's phase, or what a running answer is
    at: "reading", "answering", "asking" or "summarising". `think` is how much the model is to think, empty for its own
    way; `tools` are the servers whose tools are on."""

    model: str
    activity: str
    progress: float = 0.0
    tokens_per_s: float | None = None
    is_rate_estimated: bool = False
    time_to_first_token_s: float | None = None
    n_context_tokens: int = 0
    is_context_estimated: bool = False
    n_ctx: int = 0
    plan: Plan | None = None
    last: Completed | None = None
    think: str = ""
    tools: str = ""

    def text(self, n_cells: int | None = None) -> str:
        """Return the line: model, activity, then what fits into `n_cells` in order of importance."""
        first, *others = [part for part in self._parts() if part]
        n_shown = len(others)
        while n_cells and n_shown > 1 and cell_len(_SEPARATOR.join((first, *others[:n_shown]))) > n_cells:
            n_shown -= 1
        return _SEPARATOR.join((first, *others[:n_shown]))

    def _parts(self) -> tuple[str, ...]:
        last, rate = self.last, self.tokens_per_s or 0.0  # an answer of one token has no rate
        is_unfit = self.plan is not None and self.plan.verdict in _UNFIT
        return (
            shortened_model(self.model),
            _LABELS[self.activity] + (_bar(self.progress) if self.activity == "loading" else ""),
            f"! {self._devices() or 'too large'}: F7 helps" if is_unfit else "",
            f"tools {self.tools}" if self.tools else "",
            f"think {self.think}" if self.think else "",
            f"{'≈' if self.is_rate_estimated else ''}{rate:.1f} tok/s" if rate > 0 else "",
            "" if self.time_to_first_token_s is None else f"first token {self.time_to_first_token_s:.2f} s",
            f"context {'≈' if self.is_context_estimated else ''}{self.n_context_tokens}/{self.n_ctx}"
            if self.n_ctx
            else "",
            "" if is_unfit else self._devices(),
            f"cached {last.n_cached_tokens / last.n_prompt_tokens:.0%}" if last and last.n_cached_tokens else "",
            f"drafts {last.n_accepted_tokens} of {last.n_drafted_tokens}" if last and last.n_drafted_tokens else "",
        )

    def _devices(self) -> str:
        """Return which part of the model is on which kind of device."""
        plan = self.plan
        if plan is None or not plan.n_layers:
            return ""
        if not plan.n_on_gpus:
            return "CPU"
        return "GPU" if plan.n_on_gpus == plan.n_layers else f"GPU {plan.n_on_gpus} of {plan.n_layers}"


def status_of(
    connection: ConnectionState,
    figures: AnswerFigures,
    *,
    is_running: bool = False,
    is_compacting: bool = False,
    think: str = "",
    tools: str = "",
) -> Status:
    """Return the status; `figures` are those of the last answer, which may be running. Figures of another model than
    the present one are left out."""
    is_same_model = figures.model == connection.model
    activity: str = connection.phase
    if is_running and connection.phase == "ready":
        activity = "reading" if figures.time_to_first_token_s is None else "answering"
        activity = "summarising" if is_compacting else activity
    return Status(
        model=connection.model,
        activity=activity,
        progress=connection.progress,
        tokens_per_s=figures.tokens_per_s if is_same_model else None,
        is_rate_estimated=figures.cost is None,
        time_to_first_token_s=figures.time_to_first_token_s if is_same_model else None,
        n_context_tokens=figures.n_context_tokens,
        is_context_estimated=figures.is_context_estimated or (figures.n_context_tokens > 0 and not is_same_model),
        n_ctx=connection.n_ctx,
        plan=connection.plan,
        last=figures.cost if is_same_model else None,
        think=think,
        tools=tools,
    )


def advice(plan: Plan | None) -> str:
    """Return the cost of an unfavourable placement and the first remedy; empty if the model fits."""
    if plan is None or plan.verdict not in _UNFIT or not plan.warning:
        return ""
    helps = f" Suggestion: {plan.first_remedy}." if plan.first_remedy else ""
    return f"{plan.warning}{helps} F7 shows the plan and applies it."


def _bar(progress: float) -> str:
    share = min(max(progress, 0.0), 1.0)
    n_full = round(share * _BAR_CELLS)
    return f" {'█' * n_full}{'░' * (_BAR_CELLS - n_full)} {share:.0%}"


def shortened_model(model: str) -> str:
    """Return the name that F6 shows, also while a path is being loaded; of a long one its beginning and its end."""
    path = PurePath(model)
    if path.is_absolute():
        model = id_of(path.name)
    if cell_len(model) <= _MODEL_CELLS:
        return model
    end = model[-1:]
    while cell_len(end) < _MODEL_END_CELLS:
        end = model[-len(end) - 1 :]
    return f"{set_cell_size(model, _MODEL_CELLS - cell_len(end) - 1).rstrip()}…{end}"
