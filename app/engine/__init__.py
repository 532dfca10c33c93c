"""Inference: the only place that runs a model."""
