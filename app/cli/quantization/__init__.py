"""The steps of `quantize` and `pull --quantize` around the quantizer: calibration, search for a mix, checkpoints."""
