"""tacit inside another carrier: in come what a server or neighbours answer, as arrays; out go a
party's messages, which are noised, and its statement. One module for each carrier, an extra each.
"""
