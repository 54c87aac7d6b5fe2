"""A run over several processes: how they join, agree, and speak to each other."""
