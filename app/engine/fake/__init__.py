"""The deterministic model without native code: backend, embedder and loader."""
