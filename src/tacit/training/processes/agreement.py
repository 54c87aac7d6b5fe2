"""A run's place among other processes, and what all must have in common before a step is made.

`process_group` joins the processes that torchrun or `tacit launch` started, or the sites of a
consortium, and `agreed_folder` finds their run folder. Then each process says what it runs as a
small JSON object (`identity`, `planned`, and the layout of its records) and how many records its
own nodes hold (`counts`). Every process gets what all have reported and judges it alone; since all
judge the same, all end with the same error, which names what differs. What others have reported has
passed `tacit.communication.received`: keys and texts are short and plain.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.algorithms import source_of
from tacit.base.version import __version__
from tacit.communication.cluster.rendezvous import connect
from tacit.communication.crew import Crew
from tacit.communication.peers import Peers, Placement
from tacit.communication.received import FOLDER, FolderName
from tacit.config import Config, flat, site_keys
from tacit.errors import InputError, LeftOutError, MeetAnewError, PeerError, TacitError
from tacit.privacy.noise.gaussian import spacing
from tacit.training.plan import Plan
from tacit.training.run_folder import checkpoint as checkpoints
from tacit.training.run_folder.folder import check_new
from tacit.training.run_folder.result import Result

_LOG = logging.getLogger(__name__)
_MEETINGS = 10  # in which no step is begun, until a site that ends each of them ends the run
_RUNS = Path("runs")  # where a run is written that nobody named a folder for


def with_processes(
    config: Config,
    take_part: Callable[[Crew | None, bool], Result],
    *,
    resume: bool,
    allow_insecure_network: bool = False,
    site: Path | None = None,
    out: Path | None = None,
) -> Result:
    """Take part in a run with the other processes, and go on whenever all sites meet again.

    They do when one comes back that was left out: the others stop at a common step for it. They do
    too where a session is given up before its first step.

    `take_part` gets the other processes, and whether a run goes on. With `allow_insecure_network`,
    messages may travel in clear over a public address. `site` is the folder of this site, where the
    processes are those of a consortium; the name of `out` is then that of the run.

    Raises:
        InputError: the environment is incomplete, or an address is public; the site or its folder
            is not as it must be.
        PeerError: the other processes cannot be found.
        TacitError: what `take_part` raises.
    """
    is_new, meetings = not resume, 0
    while True:
        group = process_group(
            config, allow_insecure_network=allow_insecure_network, site=site, out=out, is_new=is_new
        )
        try:
            with group as cluster:
                result = take_part(cluster, resume)
                if cluster is None:
                    return result
                cluster.stopped = result.status == "stopped"  # and not at its last step
                cluster.meets_again &= cluster.stopped
                if not cluster.meets_again:
                    return result
        except MeetAnewError as error:
            if error.without:
                _LOG.warning("%s; the others go on without it", error)
            meetings += 1
            if meetings == _MEETINGS:
                raise PeerError(f"{error}; that happened {meetings} times") from error
            resume = resume or (out is not None and os.path.lexists(out))
            continue
        except LeftOutError:
            pass
        resume, is_new, meetings = True, False, 0


@contextmanager
def process_group(
    config: Config,
    *,
    allow_insecure_network: bool = False,
    site: Path | None = None,
    out: Path | None = None,
    is_new: bool = False,
) -> Iterator[Crew | None]:
    """The other processes: the sites of a consortium, or those that the environment names.

    That this process ends, if it fails within, is told to the others; why, as far as it is public.
    Arguments and errors are those of `with_processes`; `is_new` says that nobody asked to go on
    with a run.
    """
    if site is not None:
        with _site_group(config, site, out, is_new) as sites:
            yield sites
        return
    timeout = config.train.timeout
    cluster = connect(os.environ, timeout=timeout, allow_insecure_network=allow_insecure_network)
    if cluster is None:
        yield None
        return
    try:
        with _reported(cluster):
            yield cluster
    finally:
        cluster.close()


@contextmanager
def _site_group(config: Config, folder: Path, out: Path | None, is_new: bool) -> Iterator[Crew]:
    from tacit.communication.secure.sites import join_sites, session_folder
    from tacit.identities.site import load_site

    if out is None:
        raise InputError(
            "--out", None, "name the run folder: its name is that of the run, the same at each site"
        )
    if "WORLD_SIZE" in os.environ:
        raise InputError(
            "--site", str(folder), "is for a process that torchrun or tacit launch did not start"
        )
    site = load_site(folder)
    if site.own.rank is None:
        raise InputError("--site", str(folder), f"is of a {site.own.role}, which does not train")
    own = out / f"rank-{site.own.rank:04d}"
    has_part = os.path.lexists(own)
    sites = join_sites(
        site,
        run_name(out),
        session_folder(out, site.own.rank),
        patience=config.train.patience,
        checkpoints=checkpoints.whole(own),
        lets_leave=config.goes_on_without,
        lets_begin=config.begins_without,
        is_new=is_new and not has_part,
        has_part=has_part,
    )
    ended, error = False, None
    try:
        with _reported(sites):
            yield sites
        ended = True
    except TacitError as raised:
        error = raised
        raise
    finally:
        sites.close(ended=ended, error=error)


@contextmanager
def _reported(cluster: Crew) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        cluster.report(error)
        raise


def agreed_folder(
    cluster: Crew | None, out: Path | None, resume: bool, new: Callable[[], Path]
) -> tuple[Path, bool]:
    """The run folder of all processes, and whether its run is to be continued.

    A process writes to the folder that its own user named, and where none was named to `runs/NAME`
    below its own current folder: of others it takes the name alone, never a path. Where nobody
    named one, `new` does.

    After a restart by torchrun, whose command line stays as it was, that is the folder of the first
    time, if anything was written to it.

    Raises:
        InputError: the user of rank 0 named another folder than the user of this process, or none
            was named, and there is one of that name here already.
        PeerError: rank 0 named no run folder.
    """
    if cluster is None:
        return out or new(), resume
    own = FolderName(name=None, resume=resume)
    if cluster.rank == 0:
        text = cluster.noted("out")
        noted = None if text is None else FOLDER.read(text, 0, "run folder").name
        folder = out or (_RUNS / (run_name(new()) if noted is None else noted))
        again = noted == run_name(folder) and os.path.isfile(folder / "config.toml")
        own = FolderName(name=run_name(folder), resume=resume or again)
        cluster.note("out", FOLDER.write(own))
    agreed, *_ = cluster.share("run folder", own, FOLDER)
    if agreed.name is None:
        raise PeerError("rank 0 named no run folder")
    if out is not None and run_name(out) != agreed.name:
        expected = f"rank 0 writes to a folder called {agreed.name!r}: name the same folder"
        raise InputError("--out", str(out), expected, public=True)
    folder = out or _RUNS / agreed.name
    if out is None and not agreed.resume and cluster.rank > 0:
        check_new(folder)  # rank 0 makes its own later, once all have come this far
    return folder, agreed.resume or cluster.session.returned


def run_name(folder: Path) -> str:
    """The last part of a path, in the characters that every process takes from another."""
    return re.sub(r"[^\w. -]", "-", folder.name).lstrip(". -")[:100] or "run"


Scalar = str | int | float

# First words of what is compared.
_ORDER = ("tacit", "torch", ".", "algorithm", "record", "model", "plan")
_LONGEST = 200  # characters of a text; a longer one is stated by its beginning and a digest
_LONGEST_NAME = 80  # characters
_TOGETHER = 3  # of the values of a long list, in one text
WHOLE_SCHEMA = "record schema"  # its digest
_MOST_PARTS = 500  # of a schema that are compared one by one
_SHOWN = 3  # ranks that an error lists before it counts the others
_DROPPED_BITS = 36  # of the 52 of a fraction: leaves a precision of 8e-6


def identity(
    config: Config,
    *,
    layout: Mapping[str, Sequence[int]],
    start: Tensor,
    dtype: torch.dtype,
) -> dict[str, Scalar]:
    """What all processes must have in common before they make a plan.

    That is a flat JSON object, the same on every process: versions, one entry an experiment key
    that is set and not one of `site_keys`, and the model by its size and digests. `layout` has the
    name and shape of each trainable parameter, in the order of the flat vector; `start` is every
    node's, `[d]`, on any device.
    """
    values = start.detach().to("cpu", dtype).contiguous()
    shapes = [[name, list(shape)] for name, shape in layout.items()]
    local, source = site_keys(config), source_of(config.algorithm.definition)
    return {
        "tacit version": __version__,
        # What follows a plus says for which device torch was built.
        "torch version": torch.__version__.partition("+")[0],
        **{key: _scalar(value) for key, value in flat(config).items() if key not in local},
        **({} if source is None else {"algorithm source": source}),
        "model size": start.numel(),
        "model dtype": str(dtype).removeprefix("torch."),
        "model layout": _digest([json.dumps(shapes).encode()]),
        "model start": _digest([values.numpy().tobytes()]),
    }


def planned(plan: Plan) -> dict[str, Scalar]:
    """What all processes must have in common once they have made a plan.

    That is a flat JSON object: gossip rounds of a step, and digests of the graph schedule with its
    weights, of who takes part when, and of the noise and the clipping bound of every node and step;
    and, of secure sums, of the lattice of every step.

    Noise and clipping bounds are compared to five digits: another processor may round the last bits
    otherwise, and each node's noise is what its own process certifies.
    """
    mixing, activity, bounds = plan.mixing, plan.release.activity, plan.release.clip.bounds
    drawn = () if activity is None else (activity.active, activity.partner)
    scales = [node.noise_scale for node in plan.nodes]
    pairs = plan.release.pairs
    shared = []
    if pairs is not None:
        shared = [_bytes(np.array(pairs.pairs, np.int64)), _rounded([pairs.deviation])]
    if plan.release.sums is not None:  # a lattice is exact, or sums are of nothing
        first = next(node for node in plan.nodes if node.records)
        stds = [plan.release.noise_std(first, k) / first.divisor for k in range(plan.steps)]
        shared = [_bytes(np.array([spacing(std) for std in stds]))]
    divisors = [node.divisor for node in plan.nodes]
    return {
        "plan graph schedule": _digest([mixing.kind.encode(), *map(str.encode, mixing.digests())]),
        "plan rounds": plan.rounds,
        "plan activity": _digest(_bytes(array) for array in drawn if array is not None),
        "plan batches": _digest([_rounded(divisors)]),
        "plan noise": _digest([_rounded(scales), _rounded(plan.release.noise_shape), *shared]),
        "plan clip": _digest([] if bounds is None else [_rounded(bounds)]),
    }


def agree(identities: Sequence[Mapping[str, Scalar]], peers: Peers) -> None:
    """Refuse processes that do not run the same experiment: those that come back, alone.

    The identities are what the ranks have reported of themselves. Errors are those of `compare`
    and `do_without`.
    """
    words = [{name: _written(value) for name, value in one.items()} for one in identities]
    odd = [rank for rank, written in enumerate(words) if written != words[0]]
    do_without(peers, odd, "came back with another experiment")
    compare(identities, [site.name for site in peers.seen()])


def do_without(peers: Peers, ranks: Collection[int], what: str) -> None:
    """Have all that can meet anew without those for whom the session cannot begin.

    `what` says in words what is wrong with them.

    Raises:
        MeetAnewError: they have come back to a run that can go on without them.
    """
    if ranks and peers.can_spare(ranks):
        names = [site.name for site in peers.seen() if site.rank in ranks]
        raise MeetAnewError(f"{' and '.join(names)} {what}", frozenset(ranks))


def stated_parts(parts: Mapping[str, str]) -> dict[str, str]:
    """What a schema declares of a record, by names and in texts that processes can share.

    What is too long for one is told in several. The order of the columns is told as well.
    """
    columns = [name.removeprefix("column ") for name in parts if name.startswith("column ")]
    stated = {name: json.loads(text) for name, text in parts.items()} | {"order": columns}
    found = dict(chain.from_iterable(_pieces(f"record {name}", stated[name]) for name in stated))
    return dict(list(found.items())[:_MOST_PARTS])


def _pieces(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """A value as short texts with names of their own."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if len(text) > _LONGEST and isinstance(value, dict):
        for key, part in value.items():
            yield from _pieces(f"{name} {key}", part)
    elif len(text) > _LONGEST and isinstance(value, list) and len(value) > _TOGETHER:
        for first in range(0, len(value), _TOGETHER):
            yield from _pieces(f"{name} from {first + 1}", value[first : first + _TOGETHER])
    else:
        plain = "".join(c if c.isalpha() or c.isdecimal() or c in "_. -" else "-" for c in name)
        if plain != name or len(name) > _LONGEST_NAME:  # two names stay two
            plain = f"{plain[: _LONGEST_NAME - 5]} {_digest([name.encode(errors='replace')])[:4]}"
        yield plain, str(_scalar(text))


def compare(identities: Sequence[Mapping[str, Scalar]], names: Sequence[str] = ()) -> None:
    """Refuse processes that do not run the same experiment, as each one's identity says, by rank.

    Raises:
        InputError: two of them differ; names the first two things that differ, who has what, and
            how many more there are. The same on every process.
    """

    def place(name: str) -> tuple[int, str]:
        """Causes before effects: versions, keys of the experiment, then what follows from them."""
        word = "." if "." in name else name.partition(" ")[0]
        return (_ORDER.index(word) if word in _ORDER else len(_ORDER), name)

    stated = sorted({name for identity in identities for name in identity}, key=place)
    differing = [
        name
        for name in stated
        if len({_written(identity.get(name)) for identity in identities}) > 1
    ]
    if not differing:
        return
    if any(name.startswith("record ") and name != WHOLE_SCHEMA for name in differing):
        # A digest explains nothing.
        differing = [name for name in differing if name != WHOLE_SCHEMA]
    (value, who), *others = (_difference(name, identities, names) for name in differing[:2])
    clauses = [who]
    clauses += [f"also {differing[1]} = {_short(other)}: {its}" for other, its in others]
    if len(differing) > 2:
        clauses.append(f"and {len(differing) - 2} more")
    expected = "; ".join([*clauses, "all processes must run the same experiment"])
    raise InputError(differing[0], value, expected, public=True)


def counts(
    shared: Sequence[Sequence[int]], placement: Placement, absent: Collection[int] = ()
) -> list[int]:
    """How many records each node holds, `[nodes]`, of what each rank has reported of its own nodes.

    `shared` has, by rank, the number of records of each of its nodes, ascending. How many records
    the nodes of `absent` ranks hold, without which the session began, is not known; the first node
    of rank 0 stands for each of them.

    Raises:
        PeerError: a rank has not given one number for each of its nodes; names the rank.
    """
    records = [0] * len(placement.ranks)
    for rank, counts in enumerate(shared):
        own = placement.hosted(rank)
        if rank in absent:
            counts = [shared[0][0]] * len(own)
        if len(counts) != len(own):
            raise PeerError(
                f"rank {rank} gave {len(counts)} record counts, and has {len(own)} nodes"
            )
        for node, count in zip(own, counts, strict=True):
            records[node] = count
    if len(shared) != placement.processes:
        raise PeerError(
            f"record counts came from {len(shared)} of {placement.processes} ranks: all must give "
            "theirs"
        )
    return records


def _scalar(value: Any) -> Scalar:
    """A value of the experiment as a number or a text of bounded length."""
    bounded = type(value) is int and abs(value) < 2**63
    if bounded or (type(value) is float and math.isfinite(value)):
        return value  # type: ignore[no-any-return]
    text = value if isinstance(value, str) else json.dumps(value)
    if len(text) <= _LONGEST:
        return text
    return f"{text[: _LONGEST // 4]}... (digest {_digest([text.encode()])})"


def _digest(parts: Iterable[bytes]) -> str:
    whole = hashlib.blake2b(digest_size=16)
    for part in parts:
        whole.update(hashlib.blake2b(part, digest_size=16).digest())
    return whole.hexdigest()


def _bytes(array: NDArray[Any]) -> bytes:
    return f"{array.dtype.str} {array.shape} ".encode() + array.tobytes()


def _rounded(values: Sequence[float]) -> bytes:
    """Float64 numbers, each rounded to the 16 leading bits of its fraction."""
    bits = np.array(values, dtype=np.float64).view(np.int64)
    return _bytes((bits + (1 << (_DROPPED_BITS - 1))) >> _DROPPED_BITS)


def _written(value: Scalar | None) -> str:
    """As JSON, where 1, 1.0 and "1" are three things, and None is what was not given."""
    return json.dumps(value)


def _difference(
    name: str, identities: Sequence[Mapping[str, Scalar]], names: Sequence[str]
) -> tuple[Scalar | None, str]:
    """What the first rank that differs from rank 0 has, or None; and who has what, in words."""
    values = _in_what([identity.get(name) for identity in identities])
    holders: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        holders.setdefault(_written(value), []).append(rank)
    of_rank_0, differing, *rest = holders.values()
    listed = [
        f"{_short(values[ranks[0]])} on {_ranks(ranks, names)}" for ranks in (of_rank_0, *rest[:1])
    ]
    if rest[1:]:
        listed.append(f"others on {_ranks(sorted(chain(*rest[1:])), names)}")
    who = f"on {_ranks(differing, names)}, but {', '.join(listed)}"
    return values[differing[0]], who


def _in_what(values: list[Scalar | None]) -> list[Scalar | None]:
    """Of texts that are all JSON objects, the keys in which they differ."""
    try:
        told: list[Any] = [json.loads(value) if isinstance(value, str) else 0 for value in values]
    except (ValueError, RecursionError):
        return values
    if not all(isinstance(one, dict) for one in told):
        return values
    keys = dict.fromkeys(chain(*told))
    odd = [key for key in keys if len({json.dumps(one.get(key)) for one in told}) > 1]
    said = [{key: one[key] for key in odd if key in one} for one in told]
    return [", ".join(f"{key} {json.dumps(one[key])}" for key in one) for one in said]


def _ranks(ranks: Sequence[int], names: Sequence[str]) -> str:
    named = any(name != f"rank {rank}" for rank, name in enumerate(names))
    listed = [names[rank] if named else str(rank) for rank in ranks[:_SHOWN]]
    if len(ranks) > _SHOWN:
        listed.append(f"{len(ranks) - _SHOWN} more")
    *before, last = listed
    words = ("", "") if named else ("rank ", "ranks ")
    return f"{words[1]}{', '.join(before)} and {last}" if before else f"{words[0]}{last}"


def _short(value: object) -> str:
    """A value on one line, whatever it is."""
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:77]}..."
