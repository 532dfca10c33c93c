"""Tool calls: offered to a model, parsed from its answer, enforced by a grammar."""
