"""What leaves a node: how values are exchanged between nodes, and between processes."""
