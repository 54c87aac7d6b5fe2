"""What is released, stated as data that an accountant can read."""
