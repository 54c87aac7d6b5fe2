"""Gradients of every record, kept from step to step."""
