"""The experiment file: its sections, how it is read, and what is refused."""

from tacit.config.load import Config, load_config, read_sections, to_toml
from tacit.config.schema import (
    GIVEN,
    AlgorithmSection,
    Faults,
    Nodes,
    Privacy,
    Promise,
    Task,
    Topology,
    Train,
)

__all__ = [
    "GIVEN",
    "AlgorithmSection",
    "Config",
    "Faults",
    "Nodes",
    "Privacy",
    "Promise",
    "Task",
    "Topology",
    "Train",
    "load_config",
    "read_sections",
    "to_toml",
]
