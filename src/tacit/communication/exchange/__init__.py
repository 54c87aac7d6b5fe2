"""How messages move between nodes, and how many bytes that takes."""

from tacit.communication.exchange.between import BetweenProcesses, Graphs
from tacit.communication.exchange.in_process import InProcessExchange
from tacit.communication.exchange.protocol import Arrival, Channel, Exchange

__all__ = ["Arrival", "BetweenProcesses", "Channel", "Exchange", "Graphs", "InProcessExchange"]
