"""Plans: where a model's layers go and how fast it runs."""
