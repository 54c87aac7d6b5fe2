"""Loads everything when it is imported: by the server that `forks` names it to."""

from forks import load_everything

load_everything()
