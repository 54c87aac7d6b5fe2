"""What was spent, on the disk before it is sent."""
