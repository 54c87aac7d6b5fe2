"""Questions that are asked of a plan or of a run."""
