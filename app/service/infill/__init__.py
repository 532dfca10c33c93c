"""Fill-in-the-middle for models that were trained for it."""
