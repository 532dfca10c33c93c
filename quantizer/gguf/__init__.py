"""The GGUF format: types, headers, validation, and what a header implies about a model."""
