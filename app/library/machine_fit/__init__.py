"""The fit of models on a machine: memory, speed, plans, and the choice among quants."""
