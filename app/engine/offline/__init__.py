"""Tasks on whole texts, each in a process of its own: evaluation, importance matrix, sensitivity."""
