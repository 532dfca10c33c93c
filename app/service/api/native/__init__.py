"""localllm's own routes, which the TUI and the CLI call through `app.client`: /api/localllm, and /metrics."""
