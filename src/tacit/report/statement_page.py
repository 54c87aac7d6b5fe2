"""The page of a statement: what a data-protection officer reads, prints and signs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from tacit.report.shell import page_html
from tacit.report.wording import NOTHING, epsilon_text, guess_bound, number_text, percent_up_text

__all__ = ["statement_page"]

_HEADS = 12  # that are printed
_STYLE = """<style>
.statement { max-width: 54rem; margin: 0 auto; }
.statement td, .statement th { white-space: normal; vertical-align: top; }
.statement td:first-child, .statement th:first-child { text-align: left; min-width: 5.5rem; }
.statement .words td, .statement .words th { text-align: left; }
.statement table { margin-bottom: 0.7rem; }
.statement .facts, .statement .columns { grid-template-columns: minmax(0, 1fr); }
.statement .facts div { grid-template-columns: 11rem minmax(0, 1fr); }
.statement ol, .statement .card ul { padding-left: 1.3rem; }
.statement li { margin-bottom: 0.45rem; }
.statement .digest { font-family: ui-monospace, Menlo, Consolas, monospace; font-size: 0.78rem; }
.sign { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 2.6rem 2.4rem;
  margin-top: 3.4rem; break-inside: avoid; }
.sign div { border-top: 1px solid var(--ink); padding-top: 4px; font-size: 0.88rem; }
@media print {
  .statement { max-width: none; }
  main { padding: 0; max-width: none; }
  body { font-size: 10.5pt; }
  .card { border: 0; padding: 0; }
  .statement th { position: static; }
  tr, li { break-inside: avoid; }
  h2 { break-after: avoid; margin-top: 1.4rem; }
}
</style>"""


def statement_page(document: Mapping[str, Any]) -> str:
    """Give the page of a statement, in HTML, from the statement's JSON alone.

    Args:
        document: the content of `statement.json`, its digest included.
    """
    task, count = document["task"], len(document["nodes"])
    subject = f"{document['algorithm']['title']} on {task['dataset']}, {_nodes(count)}"
    body = "\n".join(
        [
            _STYLE,
            '<div class="statement"><header><p class="eyebrow">Statement of privacy</p>'
            f"<h1>{escape(subject)}</h1>"
            f'<p class="subtitle">Run {escape(document["run"]["run"])}, stated on '
            f"{escape(_day(document['date']))} by tacit {escape(document['tacit_version'])}</p>"
            "</header>",
            _verdict(document),
            _section("What is guaranteed", _guarantee(document)),
            _section("Each node", _node_table(document)),
            *_data_section(document),
            _section("What was released", _released(document)),
            _section("What this rests on", _listed("ol", document["assumptions"])),
            _section("What is not covered", _listed("ul", document["not_covered"])),
            _section("How to check it", _check(document)),
            _signature(),
            "</div>",
        ]
    )
    return page_html(f"Statement of privacy: {subject}", body, charts=False)


def _nodes(count: int) -> str:
    return f"{count:,} {'node' if count == 1 else 'nodes'}"


def _section(title: str, inside: str) -> str:
    return f'<section><h2>{escape(title)}</h2><div class="card">{inside}</div></section>'


def _paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def _listed(kind: str, items: Iterable[str]) -> str:
    return f"<{kind}>{''.join(f'<li>{escape(item)}</li>' for item in items)}</{kind}>"


def _verdict(document: Mapping[str, Any]) -> str:
    rows = document["nodes"]
    epsilon = epsilon_text(max(row["epsilon"] for row in rows))
    delta = epsilon_text(max(row["delta"] for row in rows))
    over = ", the highest of all nodes" if len(rows) > 1 else ""
    return (
        '<div class="banner good"><p class="headline">'
        f"Certified: epsilon {epsilon} at delta {delta}{over}</p>"
        f'<p class="detail">Relation {escape(document["relation"]["name"])}, unit one '
        f"{escape(document['unit']['name'])}, trust model "
        f"{escape(document['trust_model']['name'])}.</p></div>"
    )


def _guarantee(document: Mapping[str, Any]) -> str:
    rows = document["nodes"]
    guess = percent_up_text(max(guess_bound(row["epsilon"], row["delta"]) for row in rows))
    blind = f"50{chr(0x202F)}%"
    texts = [
        f"Suppose someone saw everything that the nodes sent, knew everything else, and had to "
        f"guess which of two neighbouring data sets a node had, at even odds. They would be right "
        f"with probability {guess} at most, at the node with the weakest guarantee; a blind guess "
        f"is right with {blind}.",
        document["epsilon_meaning"],
        *(
            f"{title}: {document[key]['meaning']}."
            for title, key in (
                ("Neighbours", "relation"),
                ("Unit of protection", "unit"),
                ("Observer", "trust_model"),
            )
        ),
    ]
    return "".join(map(_paragraph, texts))


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in headings)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _grouped(rows: Iterable[tuple[int, tuple[str, ...]]]) -> dict[tuple[str, ...], list[int]]:
    """Nodes of which the same is said."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for node, cells in rows:
        groups.setdefault(cells, []).append(node)
    return groups


def _numbers(nodes: Sequence[int]) -> str:
    """Node numbers, neighbours as a range."""
    spans: list[list[int]] = []
    for node in sorted(nodes):
        if spans and node == spans[-1][1] + 1:
            spans[-1][1] = node
        else:
            spans.append([node, node])
    return ", ".join(str(low) if low == high else f"{low} to {high}" for low, high in spans)


_NODE_HEADINGS = (
    "nodes",
    "records",
    "certified epsilon",
    "delta",
    "right guess at most",
    "budget",
    "claimed by the paper",
    "audited (at least)",
)


def _node_table(document: Mapping[str, Any]) -> str:
    infinite = document["claim"].get("infinite", False)
    groups = _grouped((row["node"], _node_cells(row, infinite)) for row in document["nodes"])
    rows = [(_numbers(nodes), *cells) for cells, nodes in groups.items()]
    formula = document["claim"].get("formula")
    words = (
        "Certified is an upper bound that is proved for what was charged to the node. Claimed is "
        f"what the algorithm's paper prints for the same noise ({formula or 'no claim'}); audited "
        "is what an attack of ours extracted, at a delta of its own. Neither is part of the "
        "guarantee."
    )
    return _table(_NODE_HEADINGS, rows) + _paragraph(words)


def _node_cells(row: Mapping[str, Any], infinite: bool) -> tuple[str, ...]:
    claimed = epsilon_text(row["claimed"])
    if row["claimed"] is None:
        claimed = "infinite" if infinite else "no claim"
    return (
        f"{row['records']:,}",
        epsilon_text(row["epsilon"]),
        epsilon_text(row["delta"]),
        percent_up_text(guess_bound(row["epsilon"], row["delta"])),
        NOTHING if row["budget"] is None else f"{row['budget']:.6g}",
        claimed,
        "not run" if row["audited"] is None else number_text(row["audited"]),
    )


def _data_section(document: Mapping[str, Any]) -> list[str]:
    """What all runs on the same data come to, where a ledger of the data was kept."""
    ledger = document["data_ledger"]
    if ledger is None:
        return []
    run = document["run"]["run"]
    rows = _grouped(
        (node, cells) for row in ledger["nodes"] for node, cells in _data_cells(row, run)
    )
    table = _table(
        ("nodes", "runs", "certified epsilon of all", "delta", "budget of the data"),
        [(_numbers(nodes), *cells) for cells, nodes in rows.items()],
    )
    words = (
        "This run shares the budget of its data with others; together they come to the following, "
        "runs that had some of the same records at other nodes included:"
    )
    heads = [
        f"{file['file']}: head {file['head']}, key {file['public_key']}" for file in ledger["files"]
    ]
    kept = "The ledgers of the data, as they were:"
    listed = _paragraph(kept) + _listed("ul", heads[:_HEADS])
    if len(heads) > _HEADS:
        listed += _paragraph(f"and {len(heads) - _HEADS} more, in statement.json.")
    return [_section("All runs on the same data", _paragraph(words) + table + listed)]


def _data_cells(row: Mapping[str, Any], run: str) -> list[tuple[int, tuple[str, ...]]]:
    """What is to be said of the nodes whose data an account is."""
    cells = (
        str(len({release["run"] for release in row["releases"] if release["steps"]})),
        epsilon_text(row["epsilon"]),
        epsilon_text(row["delta"]),
        f"{row['epsilon_budget']:.6g}",
    )
    return [
        (release["node"], cells)
        for release in row["releases"]
        if (release["run"], release["data"]) == (run, row["data"])
    ]


def _released(document: Mapping[str, Any]) -> str:
    ledger = document["ledger"]
    groups = _grouped(
        (
            row["node"],
            tuple(
                f"{document['mechanisms_in_words'][release['mechanism']]}; {release['steps']:,} "
                "steps charged"
                for release in row["releases"]
            ),
        )
        for row in ledger["nodes"]
    )
    rows = [(_numbers(nodes), "; ".join(cells)) for cells, nodes in groups.items()]
    words = (
        "Of each node an observer sees one noised sum of clipped contributions a step; everything "
        "else that is sent is computed from such sums. The noise multiplier is the standard "
        "deviation of the noise over the clipping bound of one contribution. A step that was "
        "repeated after a crash is charged as often as it may have been sent."
    )
    return f'{_paragraph(words)}<div class="words">{_table(("nodes", "mechanism"), rows)}</div>'


def _check(document: Mapping[str, Any]) -> str:
    run, task = document["run"], document["task"]
    facts = [
        ("Algorithm", f"{document['algorithm']['title']} ({document['algorithm']['paper']})"),
        ("Task", f"{task['dataset']}, {task['model']}, {task['parameters']:,} parameters"),
        ("Run entered", f"{_day(run['created'])}, by tacit {run['tacit_version']}"),
        ("Status of the run", run["status"]),
        ("Accounting", document["accounting"]),
        ("Digest of the plan", run["plan_digest"]),
        ("Head of the ledger", run["ledger_head"]),
        ("Key of the ledger", run["ledger_key"]),
        ("Digest of this statement", document["digest"]),
    ]
    rows = "".join(
        f"<div><dt>{escape(name)}</dt><dd{_look(name)}>{escape(value)}</dd></div>"
        for name, value in facts
    )
    words = (
        "statement.json, which belongs to this page, holds every mechanism and every charged step. "
        "The command 'tacit privacy check statement.json' recomputes each epsilon from that file "
        "alone; 'tacit privacy ledger' does so from the ledger. With --ledger it tells as well "
        "whether a ledger that is shown later goes on from the head below, or is an older copy. "
        "The digest shows damage and careless edits, not who wrote the statement."
    )
    return f'{_paragraph(words)}<dl class="facts">{rows}</dl>'


def _look(name: str) -> str:
    return ' class="digest"' if name.startswith(("Digest", "Head", "Key")) else ""


def _signature() -> str:
    blanks = ("Name and office", "Organisation", "Place and date", "Signature")
    return f'<div class="sign">{"".join(f"<div>{blank}</div>" for blank in blanks)}</div>'


def _day(stamp: str) -> str:
    """The date of a time stamp."""
    return stamp.partition("T")[0]
