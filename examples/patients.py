"""Makes a table of 5,000 patients of five hospitals to try tables with. No person in it is real.

    python examples/patients.py           # patients.csv and patients-sample.csv
    python examples/patients.py --split   # and hospital-0.csv to hospital-4.csv

Who comes back within 30 days is to be predicted (10.5 % do). `patients-sample.csv` holds 1,000
other made-up patients: it stands for a public sample, to read bounds from and to test on. The same
files are written every time.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np

HOSPITALS = ("St. Anne", "Riverside", "Northfield", "General", "Lakeview")
DIAGNOSES = ("heart failure", "pneumonia", "hip fracture", "stroke", "diabetes", "other")
ADMISSIONS = ("planned", "emergency", "transfer")
COLUMNS = (
    "hospital",
    "age",
    "sex",
    "admission",
    "diagnosis",
    "stay_days",
    "earlier_admissions",
    "systolic",
    "creatinine",
    "bmi",
    "smoker",
    "readmitted",
)
POSITIVE = 0.105
Row = list[str]


def patients(count: int, seed: int) -> list[Row]:
    """Made-up patients, one row each in the order of `COLUMNS`; an empty field is missing."""
    draw = np.random.default_rng(seed)
    hospital = draw.choice(len(HOSPITALS), count, p=(0.3, 0.25, 0.2, 0.15, 0.1))
    age = np.clip(draw.normal(62 + 3 * hospital, 16, count), 18, 104).round()
    sex = draw.integers(0, 2, count)
    admission = draw.choice(3, count, p=(0.35, 0.55, 0.1))
    diagnosis = draw.choice(len(DIAGNOSES), count, p=(0.18, 0.2, 0.12, 0.1, 0.15, 0.25))
    stay = np.clip(draw.gamma(2, 2.2 + 0.8 * (admission > 0)), 1, 60).round()
    earlier = np.clip(draw.poisson(0.5 + 0.012 * age), 0, 20)
    systolic = np.clip(draw.normal(128 + 0.15 * age, 18), 75, 230).round()
    creatinine = np.clip(draw.lognormal(0.0, 0.35, count) + (diagnosis == 0) * 0.3, 0.3, 9)
    bmi = np.clip(draw.normal(27, 5, count), 14, 55)
    smoker = draw.random(count) < 0.22
    score = (
        0.03 * (age - 62)
        + 0.55 * earlier
        + 0.07 * stay
        + 0.9 * (admission == 1)
        + np.array([1.1, 0.3, -0.3, 0.2, 0.5, 0.0])[diagnosis]
        + 0.9 * (creatinine - 1)
        + 0.4 * smoker
        + draw.logistic(0, 0.9, count)
    )
    readmitted = score > np.quantile(score, 1 - POSITIVE)
    no_creatinine, no_bmi, no_smoker = draw.random((3, count)) < np.array([[0.12], [0.08], [0.05]])
    return [
        [
            HOSPITALS[hospital[row]],
            f"{age[row]:.0f}",
            "fm"[sex[row]],
            ADMISSIONS[admission[row]],
            DIAGNOSES[diagnosis[row]],
            f"{stay[row]:.0f}",
            f"{earlier[row]}",
            f"{systolic[row]:.0f}",
            "" if no_creatinine[row] else f"{creatinine[row]:.2f}",
            "" if no_bmi[row] else f"{bmi[row]:.1f}",
            "" if no_smoker[row] else ("yes" if smoker[row] else "no"),
            "yes" if readmitted[row] else "no",
        ]
        for row in range(count)
    ]


def write(path: Path, rows: list[Row]) -> None:
    """Write rows as CSV with a header."""
    with path.open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(COLUMNS)
        lines.writerows(rows)


def main(folder: Path, *, split: bool = False) -> None:
    """Write the tables to a folder."""
    private, sample = patients(5000, seed=1), patients(1000, seed=2)
    write(folder / "patients.csv", private)
    write(folder / "patients-sample.csv", sample)
    for node, name in enumerate(HOSPITALS if split else ()):
        write(folder / f"hospital-{node}.csv", [row for row in private if row[0] == name])
    positive = sum(row[-1] == "yes" for row in private)
    print(f"patients.csv: {len(private):,} patients, {positive} of them readmitted")
    print(f"patients-sample.csv: {len(sample):,} others, as a public sample")


if __name__ == "__main__":
    main(Path(), split="--split" in sys.argv[1:])
