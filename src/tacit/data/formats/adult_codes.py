"""What is publicly known of the Adult data set: its columns, categories and bounds.

All of it comes from the description that is published with the data (`adult.names`: B. Becker and
R. Kohavi, UCI Machine Learning Repository, 1996), none of it from the records of a node: an
encoding that was fitted to the training records would have to be paid for.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["CATEGORIES", "COLUMNS", "LABELS", "MISSING", "MOST_FREQUENT", "NUMBERS"]

#: The columns of a line, in order; the last is what is to be predicted.
COLUMNS = (
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education-num",
    "marital-status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital-gain",
    "capital-loss",
    "hours-per-week",
    "native-country",
    "income",
)

#: The classes by the words for them; the test file ends them with a full stop.
LABELS: Mapping[str, int] = MappingProxyType({"<=50K": 0, ">50K": 1})

#: Bounds of the numbers, which are clipped to them, and whether dollars go in by logarithm.
NUMBERS: Mapping[str, tuple[float, float, bool]] = MappingProxyType(
    {
        "age": (17.0, 90.0, False),  # adults of more than 16; 90 is the census' code for older
        "fnlwgt": (0.0, 1_500_000.0, False),  # people that a record stands for
        "education-num": (1.0, 16.0, False),  # one for each level of education
        "capital-gain": (0.0, 99_999.0, True),  # 99,999 is the census' code for more
        "capital-loss": (0.0, 99_999.0, True),
        "hours-per-week": (1.0, 99.0, False),  # 99 is the census' code for more
    }
)

MISSING = "?"

#: What stands for a missing value: the most frequent one of the published training file, fixed
#: here once and for all, so that no run looks for it in the records of its nodes.
MOST_FREQUENT: Mapping[str, str] = MappingProxyType(
    {
        "workclass": "Private",
        "occupation": "Prof-specialty",
        "native-country": "United-States",
    }
)

#: Every category of a column, in the order of the description.
CATEGORIES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "workclass": (
            "Private",
            "Self-emp-not-inc",
            "Self-emp-inc",
            "Federal-gov",
            "Local-gov",
            "State-gov",
            "Without-pay",
            "Never-worked",
        ),
        "education": (
            "Bachelors",
            "Some-college",
            "11th",
            "HS-grad",
            "Prof-school",
            "Assoc-acdm",
            "Assoc-voc",
            "9th",
            "7th-8th",
            "12th",
            "Masters",
            "1st-4th",
            "10th",
            "Doctorate",
            "5th-6th",
            "Preschool",
        ),
        "marital-status": (
            "Married-civ-spouse",
            "Divorced",
            "Never-married",
            "Separated",
            "Widowed",
            "Married-spouse-absent",
            "Married-AF-spouse",
        ),
        "occupation": (
            "Tech-support",
            "Craft-repair",
            "Other-service",
            "Sales",
            "Exec-managerial",
            "Prof-specialty",
            "Handlers-cleaners",
            "Machine-op-inspct",
            "Adm-clerical",
            "Farming-fishing",
            "Transport-moving",
            "Priv-house-serv",
            "Protective-serv",
            "Armed-Forces",
        ),
        "relationship": (
            "Wife",
            "Own-child",
            "Husband",
            "Not-in-family",
            "Other-relative",
            "Unmarried",
        ),
        "race": ("White", "Asian-Pac-Islander", "Amer-Indian-Eskimo", "Other", "Black"),
        "sex": ("Female", "Male"),
        "native-country": (
            "United-States",
            "Cambodia",
            "England",
            "Puerto-Rico",
            "Canada",
            "Germany",
            "Outlying-US(Guam-USVI-etc)",
            "India",
            "Japan",
            "Greece",
            "South",
            "China",
            "Cuba",
            "Iran",
            "Honduras",
            "Philippines",
            "Italy",
            "Poland",
            "Jamaica",
            "Vietnam",
            "Mexico",
            "Portugal",
            "Ireland",
            "France",
            "Dominican-Republic",
            "Laos",
            "Ecuador",
            "Taiwan",
            "Haiti",
            "Columbia",
            "Hungary",
            "Guatemala",
            "Nicaragua",
            "Scotland",
            "Thailand",
            "Yugoslavia",
            "El-Salvador",
            "Trinadad&Tobago",
            "Peru",
            "Hong",
            "Holand-Netherlands",
        ),
    }
)
