"""Models in Python packages: the person's package indexes, and the GGUF files of a wheel, which is never installed."""
