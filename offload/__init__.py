"""The plan of a model on a machine: devices, footprint, speed, placement, advice."""
