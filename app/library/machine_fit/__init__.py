"""machine_fit."""
