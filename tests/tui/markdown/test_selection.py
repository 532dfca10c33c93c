"""Text of an answer that is selected with the mouse."""

from __future__ import annotations

import pytest
from rich.style import Style
from textual.app import App
from textual.color import Color

from tests.app.client.scripted_client import ScriptedClient, ScriptedReply

pytestmark = pytest.mark.slow

ANSWER = """# Head

plain **bold** `code` [to](http://x.example)

```python
def f(): return 'x'  # why
```

| a |
|---|
| b |

> said
"""


@pytest.mark.parametrize("theme", ["textual-dark", "textual-light", "high-contrast", "nord", "solarized-light"])
async def test_selected_text_stands_out_from_its_ground_and_from_other_text(open_app, theme):
    client = ScriptedClient(ScriptedReply(deltas=(ANSWER,)))
    async with open_app(client, size=(60, 40)) as user:
        user.app.theme = theme
        await user.asks("go")
        await user.sees("said", "48 tokens a second")
        rows = [n for n, line in enumerate(user.screen_text.splitlines()) if "Head" in line or "said" in line]
        plain = words(user.app, *rows)
        await user.pilot.mouse_down(offset=(0, rows[0]))
        await user.pilot.hover(offset=(50, rows[1]))
        await user.pilot.mouse_up(offset=(50, rows[1]))
        await user.pilot.pause()
        selected = words(user.app, *rows)
    assert [word for word, _ in selected] == [word for word, _ in plain]
    for (word, before), (_, style) in zip(plain, selected, strict=True):
        ink, ground = (Color.from_rich_color(colour) for colour in (style.color, style.bgcolor))
        assert style.bgcolor != before.bgcolor, word
        assert abs(ink.brightness - ground.brightness) > 0.3, (word, ink, ground)


def words(app: App[None], first: int, last: int) -> list[tuple[str, Style]]:
    """Return the words of two rows and those between, each with its style."""
    strips = app.screen._compositor.render_strips()[first : last + 1]
    segments = [segment for strip in strips for segment in strip if any(map(str.isalnum, segment.text))]
    return [(word, segment.style) for segment in segments for word in segment.text.split()]
