"""Tests of fidelity: whether what runs is what was certified, from inside a run.

An attack sees a defect where it can use it. These tests look at the program itself: at the noise,
at who is drawn, at what one record moves, at what leaves a node. Each of them states how often a
correct program would fail it, and the smallest defect that it finds.
"""
