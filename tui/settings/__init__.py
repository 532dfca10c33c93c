"""Settings, custom keys and themes."""
