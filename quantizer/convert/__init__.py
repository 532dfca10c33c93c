"""Sources of a quantization: checkpoints, PEFT adapters and GGUFs as tensors that are read row by row."""
