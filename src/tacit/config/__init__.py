"""The experiment file: its sections, how it is read, and what is refused."""

from tacit.config.load import Config, flat, load_config, read_sections, to_toml
from tacit.config.schema import (
    GIVEN,
    AlgorithmSection,
    Faults,
    Nodes,
    Privacy,
    Promise,
    StatementSection,
    Task,
    Topology,
    Train,
)
from tacit.config.scopes import FREE_KEYS, SITE_KEYS, known_as

__all__ = [
    "FREE_KEYS",
    "GIVEN",
    "SITE_KEYS",
    "AlgorithmSection",
    "Config",
    "Faults",
    "Nodes",
    "Privacy",
    "Promise",
    "StatementSection",
    "Task",
    "Topology",
    "Train",
    "flat",
    "known_as",
    "load_config",
    "read_sections",
    "to_toml",
]
