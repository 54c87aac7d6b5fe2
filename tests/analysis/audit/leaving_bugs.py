"""Defects of what leaves a node: what is sent or shown depends on more than what was released."""

from dataclasses import replace

from planting import Patch

from tacit.algorithms import cpgt, do_adp, privsgp
from tacit.algorithms.variance_reduction import soteriafl
from tacit.communication.colours import Released
from tacit.config.schema import AlgorithmSection
from tacit.training import prepare
from tacit.training.stacked_context import StackedContext


class Remembering(StackedContext):
    """A context that keeps the mean gradient before noise, for whoever wants it."""

    def add_noise(self, total, k, **options):
        self._all.__dict__["bare_mean"] = total / self.batch_size
        return super().add_noise(total, k, **options)


def _by_bare_values(original):
    def compressed(values, k, options, context, part=0):
        chosen = original(context.bare_mean.to(values.dtype), k, options, context, part)
        return replace(chosen, values=values * (chosen.values != 0))

    return compressed


SELECTED_ON_BARE_VALUES = tuple(
    Patch(module, "compressed", _by_bare_values) for module in (do_adp, cpgt, soteriafl)
)


def _over_the_bare_norm(original):
    def noised(at, k, context):
        total = context.batch_gradient(at, k)
        norm = total.norm(dim=1, keepdim=True).clamp(min=1e-3)
        return context.divide(context.add_noise(total, k)) / norm

    return noised


OVER_THE_BARE_NORM = (Patch(privsgp, "noised_gradient", _over_the_bare_norm),)


class LossAlongside(StackedContext):
    """Nodes tell their neighbours the loss of their batch, to draw a curve from it."""

    def add_noise(self, total, k, **options):
        assert self.last is not None
        released = super().add_noise(total, k, **options)
        self.exchange.mix(k, Released(self.last.losses.mean(dim=1, keepdim=True)))
        return released


def _scores_of_all_models(original):
    assert original.fget is not None
    return property(
        lambda section: replace(
            original.fget(section), releases=replace(original.fget(section).releases, models=True)
        )
    )


SCORES_OF_LOCAL_MODELS = (Patch(AlgorithmSection, "definition", _scores_of_all_models),)


def _counted(original):
    def load_records(*arguments):
        records = original(*arguments)
        return replace(records, classes=int(records.train.targets.max()) + 1)

    return load_records


OUTPUTS_FROM_LABELS = (Patch(prepare, "load_records", _counted),)
