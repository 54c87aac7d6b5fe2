"""Readers of data sets in their published formats."""
