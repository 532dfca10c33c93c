"""Filling a gap in a text, for models that were trained to."""
