"""Whether a model fits on a machine, how fast it is there, and which quant to take."""
