"""How long a test waits for what must happen before it counts as hung."""

from __future__ import annotations

# A start of the app with its service and its engine takes 12 s of a processor. In CI six tests run at once, beside the
# battery and real clients on two processors, and one start took more than a minute. What passes does not wait for it.
PATIENCE_S = 300.0
