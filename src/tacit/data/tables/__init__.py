"""Tables: CSV and Parquet files, and frames, read by a schema of public facts."""

from tacit.data.tables.reading import is_frame
from tacit.data.tables.schema import Schema, default_schema, find_schema

__all__ = ["Schema", "default_schema", "find_schema", "is_frame"]
