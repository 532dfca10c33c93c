"""Long work that the service has done for others: queued, run in processes of its own, watched and kept."""
