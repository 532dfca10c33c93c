"""Files that ship with localllm: the guide model, calibration text and templates."""
