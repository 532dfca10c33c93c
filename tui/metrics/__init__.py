"""Metrics of loaded models, and benchmarks."""
