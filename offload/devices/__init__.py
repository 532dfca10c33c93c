"""Devices: their description, and the probes that read it from the system."""
