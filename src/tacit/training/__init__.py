"""One run: prepared, planned, trained, and written down."""
