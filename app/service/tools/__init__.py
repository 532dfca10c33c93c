"""Tools that a model may call: what is offered, how its family writes calls, and reading them while they come."""
