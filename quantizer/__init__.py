"""Model files: read and validate them, convert checkpoints, quantize, judge the loss."""
