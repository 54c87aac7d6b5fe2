"""`tacit compare`: runs the lines of one figure, and draws what came of them, truthfully."""
