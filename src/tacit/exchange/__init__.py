"""How messages move between nodes, and how many bytes that takes."""

from tacit.exchange.in_process import InProcessExchange
from tacit.exchange.protocol import Exchange

__all__ = ["Exchange", "InProcessExchange"]
