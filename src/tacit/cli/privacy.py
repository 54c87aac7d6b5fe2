"""The commands `tacit privacy ...`: claims, ledgers, and the statement of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tacit.cli.options import (
    File,
    Insecure,
    Json,
    Page,
    Run,
    Set,
    print_written,
    waiting,
    write_page,
)

__all__ = ["privacy_app"]

privacy_app = typer.Typer(
    name="privacy",
    help="What was claimed, what is certified, what was spent, and what can be handed over.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


@privacy_app.command()
def claims(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]", help="An experiment file; default: the papers' own settings."
        ),
    ] = None,
    set_: Set = None,
    page: Page = None,
    as_json: Json = False,
) -> None:
    """Print what the papers claim against what is certified, at the same delta."""
    from tacit.analysis.claims import claims_document, claims_table
    from tacit.report.claims_page import claims_page
    from tacit.report.documents.base import dump, plain_json

    with waiting("bounding epsilon for every setting", hidden=as_json):
        document = claims_document(file, set_ or ())
    if page is not None:
        write_page(page, claims_page(plain_json(document)))
    if as_json:
        typer.echo(dump(document))
    else:
        claims_table(document)


@privacy_app.command()
def labels(
    file: File,
    epsilon: Annotated[
        float, typer.Option("--epsilon", help="What the count may cost each node.", min=1e-3)
    ] = 0.1,
    set_: Set = None,
    allow_insecure_network: Insecure = False,
    as_json: Json = False,
) -> None:
    """Count the labels under noise, charged to the budgets of the data; propose class weights."""
    from dataclasses import asdict

    from tacit.analysis.label_counts import count_labels, label_table
    from tacit.communication.peers import ALONE, Peers
    from tacit.config import load_config
    from tacit.training.processes.agreement import process_group

    config = load_config(file, overrides=set_ or ())
    timeout = config.train.timeout
    with process_group(timeout, allow_insecure_network=allow_insecure_network) as cluster:
        peers: Peers = ALONE if cluster is None else cluster
        with waiting("counting the labels of every node", hidden=as_json or peers.rank > 0):
            counted = count_labels(config, epsilon, peers=peers)
    if peers.rank > 0:
        return
    if as_json:
        typer.echo(json.dumps(asdict(counted), indent=2))
    else:
        label_table(counted)


@privacy_app.command()
def ledger(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A ledger, or a folder of them.")],
    as_json: Json = False,
) -> None:
    """Recompute what was spent from a ledger alone."""
    from tacit.analysis.ledger_report import ledger_document
    from tacit.analysis.ledger_table import ledger_table
    from tacit.report.documents.base import dump

    document = ledger_document(file)
    if as_json:
        typer.echo(dump(document))
    else:
        ledger_table(document)


@privacy_app.command()
def statement(
    run: Run,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Where to write it; default: the run folder."),
    ] = None,
    ledger: Annotated[
        Path | None,
        typer.Option(
            "--ledger", metavar="DIR", help="The ledgers of its data, where they have moved."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write what a run guarantees, to be signed: statement.json and statement.html."""
    from tacit.analysis.statement import write_statement

    print_written(write_statement(run, out, ledger), as_json)


@privacy_app.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The statement.json of a run.")],
    ledger: Annotated[
        Path | None,
        typer.Option(
            "--ledger",
            metavar="PATH",
            help="A ledger of its run or data, as it is now: is it older than the statement?",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Recompute every epsilon of a statement from the file alone."""
    from tacit.analysis.statement import check_statement
    from tacit.report.documents.base import dump
    from tacit.report.wording import count_text

    confirmed = check_statement(file, ledger)
    if as_json:
        typer.echo(dump(confirmed))
    else:
        typer.echo(f"{file}: every epsilon in it is confirmed")
        most = confirmed.colluding
        collude = "any number of nodes" if most is None else f"any {count_text(most, 'node')}"
        typer.echo(f"{file}: under the trust model {confirmed.trust_model}, {collude} may collude")
        for path in confirmed.ledgers or ():
            typer.echo(f"{path}: contains what the statement saw of it")
        for name in confirmed.audit_alarms:
            typer.echo(f"{file}: AUDIT ALARM, do not rely on these figures: {name}")
