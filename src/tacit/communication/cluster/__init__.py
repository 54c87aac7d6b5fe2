"""Many processes: finding one another, watching one another, agreeing; nothing of training."""
