"""Tuning: which runtime settings are fastest for a model on this machine."""
