"""How messages move between nodes, and how many bytes that takes."""

from tacit.exchange.between import BetweenProcesses, Graphs
from tacit.exchange.in_process import InProcessExchange
from tacit.exchange.protocol import Arrival, Channel, Exchange

__all__ = ["Arrival", "BetweenProcesses", "Channel", "Exchange", "Graphs", "InProcessExchange"]
