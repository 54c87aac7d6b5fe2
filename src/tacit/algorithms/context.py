"""What a step may use besides its state: all of it derives from the plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tacit.communication.colours import Summand
from tacit.communication.exchange import Exchange


class PublicNumbers(NamedTuple):
    """Columns of `StepContext` of the same names, `[nodes, 1]` each, on the host."""

    batch_size: Tensor
    records: Tensor
    rate: Tensor
    weight: Tensor


class StepTable(Protocol):
    """One stored clipped gradient for each record (or mini-batch): private, never sent.

    Clipped in the l2 norm: a row whose step asks for one has `clip_norms` of `l2_clip`, and under
    another norm asking for it raises InputError.
    """

    def fill(self, at: Tensor) -> None:
        """Store every record's clipped gradient at parameters `at`, `[nodes, d]`."""

    def total(self) -> Tensor:
        """The sum of all entries of each node, float64 `[nodes, d]`, a new tensor."""

    def replace(self, at: Tensor, k: int, difference: float | None) -> Tensor:
        """Draw step k's batch, renew its entries at `at`, and return the sum of new less old.

        `at` is `[nodes, d]`, and so is that sum over the batch, in float64. In it (not in what is
        stored) each record's new less old is clipped to l2 norm `difference`; None leaves them as
        they are.
        """


class StepContext(Protocol):
    """All that a step may use besides its state; it derives from the plan, with nothing of its own.

    `nodes` are those of this process. Who is *active* at a step is public and planned; the rows
    of inactive nodes are zero where a gradient is asked for, and left alone by noise. Where few
    are active, `among` gives the context of these alone, whose `nodes` and rows are only theirs.
    """

    @property
    def exchange(self) -> Exchange:
        """How messages move between nodes."""

    @property
    def nodes(self) -> Sequence[int]:
        """Numbers of the nodes of this process, one a row."""

    @property
    def count(self) -> int:
        """How many nodes the run has, in all processes."""

    @property
    def steps(self) -> int:
        """K, of the whole run."""

    @property
    def seed(self) -> int:
        """The public seed: of masks, never of noise."""

    @property
    def records(self) -> Tensor:
        """J of each node, `[nodes, 1]`."""

    @property
    def batch_size(self) -> Tensor:
        """The **expected** batch size of each node, q J, `[nodes, 1]`."""

    @property
    def weight(self) -> Tensor:
        """How much each node's noised mean counts, n p_i, float64 `[nodes, 1]`: see `divide`."""

    @property
    def rate(self) -> Tensor:
        """The chance q that a batch draws a given record, of each node, float64 `[nodes, 1]`."""

    @property
    def on_host(self) -> PublicNumbers:
        """These numbers where the host can read them without waiting for a device."""

    @property
    def table(self) -> StepTable:
        """The gradient table; only for an algorithm whose definition asks for one."""

    def active(self, k: int) -> Tensor:
        """Which nodes take part in step k, bool `[nodes, 1]`."""

    def flags(self, k: int) -> NDArray[np.bool_]:
        """The same on the host, `[nodes]`."""

    def among(self, k: int) -> StepContext:
        """The context of this process's active nodes at step k."""

    def take(self, values: Tensor) -> Tensor:
        """The rows `[here, d]` of this context's nodes, of values `[all of the process, d]`."""

    def put(self, values: Tensor, rows: Tensor) -> Tensor:
        """`values` `[all of the process, d]` with new rows `[here, d]` of this context's, in place.

        Use only what is returned: where all are active it is `rows`.
        """

    def partner(self, k: int) -> Tensor:
        """The number of the node that each is paired with at step k (its own: nobody), int64.

        On the host, which counts by it who sends.
        """

    def clip(self, k: int) -> float | None:
        """The clipping bound C of step k, for what a step clips itself; None: nothing is."""

    def batch_gradient(
        self, at: Tensor, k: int, *, part: int = 0, whole: bool = False, clipped: bool = True
    ) -> Tensor:
        """Sum of clipped record gradients, `[nodes, d]`, at parameters `at` `[nodes, d]`.

        It is over step k's batch (over mini-batch number `part`, where a step draws several:
        `Schedules.local_steps`), or over every record of the node where `whole` is true. At points
        in float64 the sum is in float64 too, also in a run in float32. `clipped` is False for plain
        gradients, where the step clips what it makes of them.
        """

    def once(self, make: Callable[[], Tensor]) -> Tensor:
        """What `make` gives, which sends nothing: made once, also where the step is made again."""

    def batch_difference(self, at: Tensor, anchor: Tensor, k: int, bound: float | None) -> Tensor:
        """Sum over step k's batch of clipped gradients at `at` less those at `anchor`.

        Each record's difference is clipped to l2 norm `bound` if one is given, and the gradients in
        the l2 norm too: a row whose step asks for this has `clip_norms` of `l2_clip`. All
        `[nodes, d]`; the sum is in float64, so that no more is lost to rounding when something is
        added to it.

        Raises:
            InputError: on `algorithm.clip_norm`, another norm than l2.
        """

    def add_noise(
        self, total: Tensor, k: int, *, scale: float | Tensor = 1.0, part: int = 0
    ) -> Tensor:
        """`total` plus step k's noise, in place, `[nodes, d]`.

        The plan's noise is that of a **sum** over a batch. What is handed in must be a sum of
        bounded contributions, or the change that one makes around a public point: never a value in
        which a record's contribution could be lost to rounding, or grow by it.

        `scale`, a number or `[nodes, 1]`, is how far `total` moves when the sum moves by one: the
        noise is scaled alike. The host reads it, so it should lie there: see `on_host`. `part` is
        the number of the release, where a step has several.
        """

    @property
    def only_sums(self) -> bool:
        """Whether the server may see sums over the round's clients alone: then `summand` in place
        of `add_noise`, whose noise is not enough for a message that is seen.
        """

    def summand(self, values: Tensor, k: int) -> Summand[Tensor]:
        """`values` plus step k's noise in points of a lattice that all clients share.

        For `Exchange.secure_sum`: int64 `[active, d]`. `values` are those of the active clients of
        this process, float64 `[active, d]`, in the units of `divide`: of the **mean** over a batch,
        weighed. They are overwritten. As for `add_noise`, what is handed in must be bounded: a sum
        of clipped contributions over the expected batch, or a change that was clipped.
        """

    def mean_of_sum(self, total: Tensor, k: int) -> Tensor:
        """The mean `[1, d]` over step k's active clients, of their `secure_sum` int64 `[1, d]`."""

    def noise_std(self, k: int) -> Tensor:
        """Standard deviation of step k's noise in a sum, float64 `[nodes, 1]`; 0 without noise."""

    def divide(self, total: Tensor) -> Tensor:
        """`total` times `weight` over each node's *expected* batch size, in place, `[nodes, d]`.

        What a node that counts n p_i times adds to the mean of all: public factors, for what is
        noised, or will be with `scale` in these units.
        """
