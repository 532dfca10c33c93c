"""Speed: a cost model over bandwidth, its calibration, and predictions."""
