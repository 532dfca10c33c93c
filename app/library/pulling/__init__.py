"""pulling."""
