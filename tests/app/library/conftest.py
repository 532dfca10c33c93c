"""Makes the test hub, and descriptions of machines and models, importable by every test of the library."""

from __future__ import annotations
