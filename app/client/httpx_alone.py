"""httpx without its own command line, whose imports (click, Rich, Pygments) take as long as all the rest of it: 54 of
128 ms of CPU. Where that cannot be imported httpx does without, so it is made missing for this moment."""

import sys

if "httpx" not in sys.modules:
    sys.modules["httpx._main"] = None  # type: ignore[assignment]
    import httpx as httpx

    del sys.modules["httpx._main"]
else:
    import httpx as httpx
