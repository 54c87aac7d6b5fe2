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
from tacit.config.scopes import free_keys, known_as, site_keys

__all__ = [
    "GIVEN",
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
    "free_keys",
    "known_as",
    "load_config",
    "read_sections",
    "site_keys",
    "to_toml",
]
