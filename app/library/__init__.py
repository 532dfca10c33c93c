"""The model library: models on this machine, models on the hub, and fetching them."""
