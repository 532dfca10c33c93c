"""The typed client of the service, and the client of any other engine."""

import sys

# httpx imports its own command line, with click, Rich and Pygments, which takes as long as all the rest of it (54 of
# 128 ms of CPU). Where that cannot be imported httpx does without, so that it is made missing for this moment.
if "httpx" not in sys.modules:
    sys.modules["httpx._main"] = None  # type: ignore[assignment]
    import httpx  # noqa: F401

    del sys.modules["httpx._main"]
