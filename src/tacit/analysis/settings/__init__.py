"""From a base experiment and changes of its keys to runs that are found again, and their cost."""
