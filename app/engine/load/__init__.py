"""Loading: from a path to a running model on the devices of this machine."""
