"""Hugging Face checkpoint folders, which are trusted in nothing."""
