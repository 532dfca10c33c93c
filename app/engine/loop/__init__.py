"""The loop that answers requests: scheduling, slots, sampling, verification and output text."""
