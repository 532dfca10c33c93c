"""LM Studio's dialect: /api/v0."""
