"""Long work in processes of its own: queued, run, saved, and published to subscribers."""
