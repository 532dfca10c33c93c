"""Speed: a cost model over bandwidth, its rates fitted to measurements, and predictions."""
