"""What the papers promise of accuracy, as printed: a module for each, of pure arithmetic.

A promise is the paper's: it holds if its theorem does and every condition of it is met; nothing
here is certified. Constants of the problem (such as L) must be supplied; nobody knows them of
private records for free. One that is not known is NaN, and so is what it enters.
"""
