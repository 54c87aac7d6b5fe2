"""Makes the planted bugs and what plants them importable in `fidelity` as well."""
