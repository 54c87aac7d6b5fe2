"""What everything else stands on: the version, memory that is free, and files."""
