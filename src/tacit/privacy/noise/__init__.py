"""Noise that is drawn on a lattice, from keys that are secret."""
