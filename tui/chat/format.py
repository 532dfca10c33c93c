"""What is below an answer, and a chat's settings, as text; pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from app.chat.branches import Ending, TranscriptEntry, empty_answer_text
from app.chat.conversation import ChatSettings, Scalar
from app.chat.sampling_options import valid_options
from app.common.terminal import printable_line
from quantizer.figures import format_number
from tui.design.words import counted, model_label, speed_words

if TYPE_CHECKING:
    from app.protocol.plan import Plan
    from app.protocol.sampling import ModelSampling


_SEPARATOR = " · "
_ENDINGS = {
    Ending.COMPLETE: "",
    Ending.CUT: "token limit reached",
    Ending.STOPPED: "stopped",
    Ending.ELSEWHERE: "answering in another window",
    Ending.FAILED: "incomplete",
}
_FIGURES = (
    *("decode_tokens_per_s", "time_to_first_token_s", "n_output_tokens", "n_prompt_tokens", "n_cached_tokens"),
    *("n_drafted_tokens", "n_accepted_tokens"),
)
_FELT_S = 0.05  # before a first word, which is no wait below it
_OPTION_CHARACTERS = 60
_USUAL_OPTIONS = ("temperature", "top_k", "top_p", "min_p")
_MODEL_CELLS = 48


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
    return ", ".join(f"{name} {format_number(default.value)} ({default.origin})" for name, default in shown.items())


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
    """Return the line below an answer: the model that wrote it where another one wrote before, how it ended, and how
    fast it was. An entry that `has_figures` has those of the engine too."""
    message = entry.message
    name = model_label(printable_line(message.model), _MODEL_CELLS) if entry.names_model else ""
    if entry.is_running:
        return name
    ending = empty_answer_text(entry) or _ENDINGS[entry.ending]
    figures = figures_text(message.stats, is_full=entry.has_figures)
    return _SEPARATOR.join(filter(None, (name, ending, figures)))


def figures_text(stats: Mapping[str, Scalar], *, is_full: bool = True) -> str:
    """Return the figures of an answer in people's words; if `is_full`, what the engine spared too."""
    rate, first_s, n_output, n_prompt, n_cached, n_drafted, n_accepted = (_number(stats.get(name)) for name in _FIGURES)
    parts = [
        speed_words(rate) if rate > 0 else "",
        f"first word after {first_s:.1f} s" if first_s >= _FELT_S else "",
        counted(round(n_output), "token") if n_output > 0 else "",
    ]
    if is_full:
        cached = f" ({n_cached / n_prompt:.0%} cached)" if n_cached > 0 and n_prompt > 0 else ""
        parts += [
            f"{n_prompt:,.0f} read{cached}" if n_prompt > 0 else "",
            f"drafts {n_accepted:,.0f} of {n_drafted:,.0f}" if n_drafted > 0 else "",
        ]
    return _SEPARATOR.join(filter(None, parts))


def _number(value: Scalar | None) -> float:
    """Return a stored figure, 0 for anything else: an imported chat may hold anything."""
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else 0.0


def advice(plan: Plan | None) -> str:
    """Return the cost of an unfavourable placement and the first remedy; empty if the model fits."""
    if plan is None or not plan.is_unfit or not plan.warning:
        return ""
    helps = f" Suggestion: {plan.first_remedy}." if plan.first_remedy else ""
    return f"{plan.warning}{helps} F7 shows the plan and applies it."
