"""The command line: parses, calls, prints; decides nothing."""
