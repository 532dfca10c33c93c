"""lmstudio."""
