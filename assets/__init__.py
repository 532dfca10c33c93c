"""Files that ship with localllm: the guide model, its sources, and texts for calibration and evaluation."""
