"""Where layers go and what that costs: devices, footprint, speed, plan, advice."""
