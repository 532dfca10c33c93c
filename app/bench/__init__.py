"""The same work for any OpenAI-compatible server, timed from outside: what `localllm bench` and tests/bench measure."""
