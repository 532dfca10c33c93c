"""composer."""
