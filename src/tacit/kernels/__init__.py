"""Compiled loops for what a step does most: no dependence on the rest of tacit."""
