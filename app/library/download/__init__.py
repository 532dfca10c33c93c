"""Downloads of single files that survive faults of the network, the server and this machine."""
