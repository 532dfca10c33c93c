"""What a person chooses for a session in their editor: the model, how much it thinks, and the mode.

Each is a configuration option of the protocol; clients that do not know these have the modes, and the commands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from acp.schema import SessionConfigOptionBoolean, SessionConfigOptionSelect, SessionConfigSelectOption

from app.acp.modes import MODES, Mode
from app.chat.backend import ConnectionState
from app.chat.conversation import ChatSettings
from app.chat.sampling_options import THINK_LEVELS, think_of

ConfigOption: TypeAlias = SessionConfigOptionSelect | SessionConfigOptionBoolean

MODEL, THINKING, MODE = "model", "thinking", "mode"
AUTO = "auto"  # of thinking: as the model is used to


def config_options(
    current_model: str, models: Sequence[str], mode: Mode, settings: ChatSettings, state: ConnectionState
) -> list[ConfigOption]:
    """Return the options of a session; `models` are the ids that can be chosen. How much to think is one of a model
    that thinks, as far as known."""
    names = models if current_model in models else (current_model, *models)
    chosen: list[ConfigOption] = [
        SessionConfigOptionSelect(
            id=MODE,
            name="Mode",
            category="mode",
            type="select",
            current_value=mode.id,
            options=[SessionConfigSelectOption(value=m.id, name=m.name, description=m.description) for m in MODES],
        ),
        SessionConfigOptionSelect(
            id=MODEL,
            name="Model",
            category="model",
            type="select",
            current_value=current_model,
            options=[SessionConfigSelectOption(value=name, name=name) for name in names],
        ),
    ]
    if state.thinks:
        level = think_of(settings.options) or AUTO
        levels = dict.fromkeys((AUTO, *THINK_LEVELS, level))
        chosen.append(
            SessionConfigOptionSelect(
                id=THINKING,
                name="Thinking",
                category="thought_level",
                type="select",
                current_value=level,
                options=[SessionConfigSelectOption(value=each, name=each.capitalize()) for each in levels],
            )
        )
    return chosen
