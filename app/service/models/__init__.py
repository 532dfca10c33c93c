"""The models that requests may name: found, opened, listed, planned."""
