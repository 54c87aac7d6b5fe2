"""What mechanisms cost: epsilon and delta that provably hold."""
