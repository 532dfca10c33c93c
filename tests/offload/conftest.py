"""Where tests find the builders of model files."""

from __future__ import annotations
