"""Whom epsilon protects, as data: in plans, in results and in statements."""

from __future__ import annotations

import re
from typing import Literal

from tacit.report.documents.base import Count, Document, OptionalNumber, Text
from tacit.report.wording import plural, with_article

_RECORD = re.compile(r"\b(an? )?(record)(s?)\b", re.IGNORECASE)


class UnitTerms(Document):
    """Whom epsilon protects: a record, or a person, which is all rows with one id at a node.

    Args:
        name: what is counted, drawn and clipped as one: "record", or what a person is called.
        person: whose the rows are, as in "patient"; None: nobody said.
        gradient: what a person's rows are to its gradient, their mean or their sum; None where
            epsilon protects each row alone.
        rows: of a person at a node that count, at most; public.
        nodes: that have rows of one person, at most; public, and a promise.
        epsilon: certified at `delta`, of a person with so many rows at so many nodes, where that is
            more than a node's epsilon says; None where it is not, and where none is known.
    """

    name: Text
    person: Text | None = None
    gradient: Literal["mean", "sum"] | None = None
    rows: Count = 1
    nodes: Count = 1
    epsilon: OptionalNumber = None
    delta: OptionalNumber = None

    @property
    def apart(self) -> bool:
        """Whether a person's epsilon is another than that of its node."""
        return self.person is not None and (self.gradient is None or self.nodes > 1)

    @property
    def plural(self) -> str:
        """Several of what is counted: records, patients."""
        return plural(self.name)

    def said(self, text: str) -> str:
        """A text about the record that epsilon protects, by the name of that.

        >>> UnitTerms(name="patient").said("a record joins a step, and other records do not")
        'a patient joins a step, and other patients do not'
        """
        return text if self.name == "record" else _RECORD.sub(self._named, text)

    def _named(self, found: re.Match[str]) -> str:
        article, _, several = found.groups()
        name = self.plural if several else self.name
        name = with_article(name) if article else name
        return name[0].upper() + name[1:] if found[0][0].isupper() else name


RECORD = UnitTerms(name="record")
"""Where nobody said whose the records are."""
