"""What a run leaves: its folder, checkpoints, metrics and result."""
