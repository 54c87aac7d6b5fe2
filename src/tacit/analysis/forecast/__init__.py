"""How long a step between processes takes, and what it sends."""
