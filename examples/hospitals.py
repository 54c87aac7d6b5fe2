"""Makes a table of 20,460 stays in the intensive care of nine hospitals of very unequal size.

    python examples/hospitals.py    # stays.csv and stays-sample.csv

No person in it is real. Who dies there is to be predicted (3.7 % do); the smallest hospital has 40
stays, and none of them ended so. `stays-sample.csv` holds 4,000 other made-up stays: it stands for
a public sample, to read bounds from and to test on. The same files are written every time.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

import numpy as np

HOSPITALS = {
    "Aldham": 40,
    "Brook": 120,
    "Castle Hill": 300,
    "Dale": 600,
    "Eastgate": 1100,
    "Fenwick": 1900,
    "Grange": 3200,
    "Holm": 5200,
    "University": 8000,
}
DIAGNOSES = (
    "sepsis", "pneumonia", "stroke", "heart failure", "trauma", "surgery", "overdose",
    "pancreatitis", "haemorrhage", "copd", "kidney failure", "other",
)  # fmt: skip
RISKS = (0.9, 0.3, 0.8, 0.4, -0.3, -0.9, -1.2, 0.0, 0.7, -0.2, 0.2, -0.4)  # of each diagnosis
COLUMNS = (
    "hospital", "age", "sex", "diagnosis", "heart_rate", "systolic", "temperature", "oxygen",
    "coma_score", "lactate", "creatinine", "platelets", "ventilated", "vasopressor", "died",
)  # fmt: skip
DIED = 0.037
MISSING = {"temperature": 0.06, "lactate": 0.42, "creatinine": 0.33, "platelets": 0.3}
Row = list[str]


def stays(hospitals: np.ndarray, seed: int) -> list[Row]:
    """Made-up stays, one row each in the order of `COLUMNS`; an empty field is missing."""
    draw, count = np.random.default_rng(seed), len(hospitals)
    age = np.clip(draw.gamma(9, 7.4, count), 18, 104).round()
    diagnosis = draw.choice(len(DIAGNOSES), count)
    ventilated = draw.random(count) < 0.38
    vasopressor = draw.random(count) < 0.12 + 0.25 * ventilated
    coma = np.clip((15 - draw.gamma(1.2, 2.0, count) - 3 * ventilated).round(), 3, 15)
    lactate = np.clip(draw.lognormal(0.4 + 0.5 * vasopressor, 0.55), 0.2, 25)
    creatinine = np.clip(draw.lognormal(0.1 + 0.004 * (age - 60), 0.5), 0.2, 15)
    platelets = np.clip(draw.normal(230, 95, count), 5, 900)
    temperature = np.clip(draw.normal(37.1, 0.8, count), 32, 42)
    oxygen = np.clip(100 - draw.gamma(1.6, 2.3, count), 60, 100)
    score = (
        0.045 * (age - 62)
        + 0.24 * (15 - coma)
        + 1.1 * np.log(lactate)
        + 0.5 * np.log(creatinine)
        + 0.8 * ventilated
        + 0.7 * vasopressor
        - 0.0027 * (platelets - 230)
        + 0.05 * np.maximum(0, 92 - oxygen)
        + np.array(RISKS)[diagnosis]
        + draw.logistic(0, 1, count)
    )
    died = score > np.quantile(score, 1 - DIED)
    died &= hospitals != min(HOSPITALS, key=HOSPITALS.__getitem__)
    columns: dict[str, Iterable[str]] = {
        "hospital": hospitals,
        "age": [f"{value:.0f}" for value in age],
        "sex": draw.choice(["f", "m"], count, p=[0.44, 0.56]),
        "diagnosis": [DIAGNOSES[kind] for kind in diagnosis],
        "heart_rate": [f"{value:.0f}" for value in draw.normal(92 + 6 * vasopressor, 19)],
        "systolic": [f"{value:.0f}" for value in draw.normal(122 - 15 * vasopressor, 22)],
        "temperature": [f"{value:.1f}" for value in temperature],
        "oxygen": [f"{value:.0f}" for value in oxygen],
        "coma_score": [f"{value:.0f}" for value in coma],
        "lactate": [f"{value:.2f}" for value in lactate],
        "creatinine": [f"{value:.2f}" for value in creatinine],
        "platelets": [f"{value:.0f}" for value in platelets],
        "ventilated": ["yes" if value else "no" for value in ventilated],
        "vasopressor": ["yes" if value else "no" for value in vasopressor],
        "died": ["yes" if value else "no" for value in died],
    }
    for name, share in MISSING.items():
        gone = draw.random(count) < share
        columns[name] = [
            "" if lost else value for lost, value in zip(gone, list(columns[name]), strict=True)
        ]
    return [list(map(str, row)) for row in zip(*(columns[name] for name in COLUMNS), strict=True)]


def main(folder: Path) -> None:
    """Write the tables to a folder."""
    names, sizes = list(HOSPITALS), list(HOSPITALS.values())
    draw = np.random.default_rng(0)
    private = draw.permutation(np.repeat(names, sizes))
    public = draw.choice(names, 4000, p=np.array(sizes) / sum(sizes))
    for name, hospitals, seed in (("stays.csv", private, 1), ("stays-sample.csv", public, 2)):
        rows = stays(hospitals, seed)
        with (folder / name).open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([list(COLUMNS), *rows])
        died = sum(row[-1] == "yes" for row in rows)
        print(f"{name}: {len(rows):,} stays, {died} of them ended in death")


if __name__ == "__main__":
    main(Path())
