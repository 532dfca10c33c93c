"""footprint."""
