"""The settings: defaults < TOML file < LOCALLLM_* environment < flags."""
