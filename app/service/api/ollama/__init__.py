"""Ollama's dialect: /api."""
