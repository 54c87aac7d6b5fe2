"""`tacit tune`: searches settings under one budget that covers the choosing."""
