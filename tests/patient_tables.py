"""Small tables of made-up patients, from the program that ships as an example."""

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import cast

import tomli_w

PROGRAM = Path(__file__).resolve().parents[1] / "examples" / "patients.py"
HOSPITALS = ("St. Anne", "Riverside", "Northfield", "General", "Lakeview")
SCHEMA = {
    "confirmed_public": True,
    "target": {"column": "readmitted", "kind": "class", "labels": ["no", "yes"]},
    "node": {"column": "hospital", "values": list(HOSPITALS)},
    "columns": {
        "age": {"kind": "number", "low": 18, "high": 110},
        "sex": {"kind": "category", "values": ["f", "m"]},
        "admission": {"kind": "category", "values": ["planned", "emergency", "transfer"]},
        "diagnosis": {"kind": "category", "values": ["stroke"], "unknown": "other"},
        "stay_days": {"kind": "number", "low": 0, "high": 60, "scale": "log"},
        "earlier_admissions": {"kind": "number", "low": 0, "high": 20},
        "systolic": {"kind": "number", "low": 70, "high": 230},
        "creatinine": {"kind": "number", "low": 0, "high": 10, "missing": "indicator"},
        "bmi": {"kind": "number", "low": 10, "high": 60, "missing": "indicator"},
        "smoker": {"kind": "boolean", "missing": "indicator"},
    },
}
Row = list[str]


def write_tables(folder, count=300, **schema):
    """`patients.csv`, another hundred in `sample.csv`, and the schema of the first."""
    program = runpy.run_path(str(PROGRAM))
    make = cast("Callable[[int, int], list[Row]]", program["patients"])
    program["write"](folder / "patients.csv", make(count, 1))
    program["write"](folder / "sample.csv", make(100, 2))
    text = tomli_w.dumps({**SCHEMA, **schema})
    (folder / "patients.schema.toml").write_text(text, encoding="utf-8")
