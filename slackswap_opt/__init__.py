"""Plan GPU activation memory for training: keep, swap or recompute, with proofs."""
