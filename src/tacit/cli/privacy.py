"""The commands `tacit privacy ...`: claims, ledgers, and the statement of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from tacit.cli.options import (
    Ended,
    File,
    Insecure,
    Json,
    Page,
    Set,
    Trust,
    command_group,
    print_written,
    show_document,
    show_lines,
    waiting,
    write_new,
)
from tacit.errors import InputError

if TYPE_CHECKING:
    from tacit.communication.peers import Peers
    from tacit.config import Config

_Site = Annotated[
    Path | None, Option("--site", metavar="DIR", help="Sign it as the member of this site folder.")
]
_Part = Annotated[
    Path | None, Option("--site", metavar="DIR", help="Take part as this site of a consortium.")
]

privacy_app = command_group(
    "privacy", "What was claimed, what is certified, what was spent, and what can be handed over."
)


@privacy_app.command()
def claims(
    file: Annotated[
        Path | None,
        Argument(metavar="[FILE]", help="An experiment file; default: the papers' own settings."),
    ] = None,
    set_: Set = None,
    page: Page = None,
    as_json: Json = False,
) -> None:
    """Print what the papers claim against what is certified, at the same delta."""
    from tacit.analysis.claims import claims_document
    from tacit.report.claims_page import claims_blocks
    from tacit.report.documents.base import plain_json

    with waiting("bounding epsilon for every setting", hidden=as_json):
        document = claims_document(file, set_ or ())
    show_document(document, claims_blocks(plain_json(document)), page, as_json=as_json)


@privacy_app.command()
def labels(
    file: File,
    epsilon: Annotated[float, Option(help="What the count may cost each node.", min=1e-3)] = 0.1,
    set_: Set = None,
    site: _Part = None,
    allow_insecure_network: Insecure = False,
    as_json: Json = False,
) -> None:
    """Count the labels under noise, charged to the budgets of the data; propose class weights."""
    from tacit.analysis.private_counts import count_labels, label_blocks
    from tacit.config import load_config

    config = load_config(file, overrides=set_ or ())
    with (
        _peers(config, site, file, allow_insecure_network) as peers,
        waiting("counting the labels of every node", hidden=as_json or peers.rank > 0),
    ):
        counted = count_labels(config, epsilon, peers=peers)
    if peers.rank == 0 or site is not None:
        show_document(asdict(counted), label_blocks(counted), as_json=as_json)


@contextmanager
def _peers(
    config: Config, site: Path | None, file: Path, allow_insecure_network: bool
) -> Iterator[Peers]:
    """The other processes of a count; sites meet under the name of their experiment file."""
    from tacit.communication.peers import ALONE
    from tacit.training.processes.agreement import process_group

    name = file.with_name(f"{file.stem}.counts")
    with process_group(
        config,
        allow_insecure_network=allow_insecure_network,
        site=site,
        out=name,
        is_new=site is not None,
    ) as cluster:
        yield ALONE if cluster is None else cluster


@privacy_app.command()
def scores(
    file: File,
    run: Ended,
    epsilon: Annotated[float, Option(help="What they may cost each node.", min=1e-3)] = 0.1,
    data: Annotated[
        str | None, Option(help="A table of records held out; default: those of training.")
    ] = None,
    by: Annotated[
        str | None, Option(metavar="COLUMN", help="A declared column: score its groups as well.")
    ] = None,
    set_: Set = None,
    trust: Trust = False,
    site: _Part = None,
    allow_insecure_network: Insecure = False,
    as_json: Json = False,
) -> None:
    """Score a run's model on all nodes' records under noise, charged to the budgets of the data."""
    from tacit.analysis.private_counts import noised_scores, score_blocks
    from tacit.config import load_config

    config = load_config(file, overrides=set_ or ())
    with (
        _peers(config, site, file, allow_insecure_network) as peers,
        waiting("scoring the records of every node", hidden=as_json or peers.rank > 0),
    ):
        found = noised_scores(config, run, epsilon, held_out=data, by=by, trust=trust, peers=peers)
    if peers.rank == 0 or site is not None:
        show_document(asdict(found), score_blocks(found), as_json=as_json)


@privacy_app.command()
def ledger(
    file: Annotated[Path, Argument(metavar="FILE", help="A ledger, or a folder of them.")],
    out: Annotated[
        Path | None, Option(metavar="JSON", help="Write it with its heads to a new file.")
    ] = None,
    site: _Site = None,
    as_json: Json = False,
) -> None:
    """Recompute what was spent from a ledger alone."""
    from tacit.analysis.ledger_report import ledger_document
    from tacit.report.documents.base import dump
    from tacit.report.ledger_words import ledger_blocks

    if site is not None and out is None:
        raise InputError("--site", str(site), "signs a file: name a new one with --out")
    sign = _signing(site)
    document = ledger_document(file)
    if out is not None:
        write_new("--out", out, dump(document).encode(), private=True)
        print_written([out, *sign([out])], as_json)
    else:
        show_document(document, ledger_blocks(document), as_json=as_json)


@privacy_app.command()
def statement(
    run: Ended,
    out: Annotated[
        Path | None, Option(metavar="DIR", help="Where to write it; default: the run folder.")
    ] = None,
    ledger: Annotated[
        Path | None, Option(metavar="DIR", help="The ledgers of its data, where they have moved.")
    ] = None,
    declared: Annotated[
        Path | None,
        Option(metavar="FILE", help="Take [statement] from this file, not from the run's."),
    ] = None,
    registry: Annotated[
        Path | None,
        Option(metavar="YAML", help="Write a record of the deployments registry to a new file."),
    ] = None,
    answers: Annotated[
        str | None,
        Option(metavar="nist", help="Answer the questions of SP 800-226: statement-nist.md."),
    ] = None,
    site: _Site = None,
    as_json: Json = False,
) -> None:
    """Write what a run guarantees, to be signed: statement.json and statement.html."""
    from tacit.analysis.statement import write_statement
    from tacit.identities.site import load_site

    bundle = None if site is None else load_site(site).bundle
    sign = _signing(site)
    written = write_statement(
        run, out, ledger, declared=declared, registry=registry, answers=answers, bundle=bundle
    )
    print_written([*written, *sign(written)], as_json)


@privacy_app.command("sign")
def sign_(
    file: Annotated[Path, Argument(metavar="FILE", help="A statement that another site sent.")],
    site: Annotated[Path, Option(metavar="DIR", help="The folder of the member who signs.")],
    as_json: Json = False,
) -> None:
    """Sign a file as a member of a consortium: FILE.NAME.signature."""
    print_written(_signing(site)([file]), as_json)


@privacy_app.command()
def verify(
    file: Annotated[
        Path, Argument(metavar="FILE", help="What was signed; FILE.NAME.signature lie beside it.")
    ],
    bundle: Annotated[Path, Option(metavar="BUNDLE", help="The bundle.json of the consortium.")],
    page: Annotated[
        Path | None,
        Option(metavar="HTML", help="Write the statement with who has signed to a new file."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check which members of a consortium have signed a file, and that it is as it was signed."""
    from tacit.analysis.statement import signed_page
    from tacit.identities.bundle import read_bundle
    from tacit.identities.signatures import SignedFile, verified_signatures

    members = read_bundle(bundle)[0]
    found = verified_signatures(file, members)
    words = dict.fromkeys(found, "has not signed")
    signed = [one for one in found.values() if isinstance(one, SignedFile)]
    words |= {name: one.words for name, one in found.items() if isinstance(one, SignedFile)}
    refused = {name: one for name, one in found.items() if isinstance(one, InputError)}
    words |= {name: f"NOT VALID: {one.expected}" for name, one in refused.items()}
    if page is not None:
        write_new("--page", page, signed_page(file, words).encode(), private=True)
    if refused:
        why = "; ".join(f"of {name}: {one.expected}" for name, one in refused.items())
        valid = ", ".join(one.name for one in signed) or "none"
        raise InputError("signature", str(file), f"{why} (valid are those of: {valid})")
    if not signed:
        expected = "must be signed: no FILE.NAME.signature lies beside it"
        raise InputError("signature", str(file), expected)
    signers = [asdict(one) | {"date": one.date.isoformat()} for one in signed]
    missing = [name for name, one in found.items() if one is None]
    lines = (f"{file}: {name}: {told}" for name, told in words.items())
    show_lines({"signed": signers, "not_signed": missing}, lines, as_json=as_json)


def _signing(folder: Path | None) -> Callable[[Iterable[Path]], list[Path]]:
    """What signs files as the member of a site folder, which is looked at now; nothing without."""
    if folder is None:
        return lambda _: []
    from tacit.identities.signatures import sign_file
    from tacit.identities.site import load_site

    site = load_site(folder)
    return lambda files: [sign_file(site, file) for file in files]


@privacy_app.command()
def check(
    file: Annotated[Path, Argument(metavar="FILE", help="The statement.json of a run.")],
    ledger: Annotated[
        Path | None,
        Option(
            metavar="PATH",
            help="A ledger of its run or data, as it is now: is it older than the statement?",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Recompute every epsilon of a statement from the file alone."""
    from tacit.analysis.statement import check_statement
    from tacit.report.documents.base import plain_json
    from tacit.report.wording import count_text

    confirmed = check_statement(file, ledger)
    most, trust_model = confirmed.colluding, confirmed.trust_model
    collude = "any number of nodes" if most is None else f"any {count_text(most, 'node')}"
    if trust_model == "secure-sum":
        collude += ", those of the server's process included,"
    alarm = "AUDIT ALARM, do not rely on these figures"
    lines = (
        f"{file}: every epsilon in it is confirmed",
        f"{file}: under the trust model {trust_model}, {collude} may collude",
        f"{file}: epsilon protects {confirmed.unit.meaning}",
        *(f"{path}: contains what the statement saw of it" for path in confirmed.ledgers or ()),
        *(f"{file}: {alarm}: {name}" for name in confirmed.audit_alarms),
    )
    show_lines(plain_json(confirmed), lines, as_json=as_json)
