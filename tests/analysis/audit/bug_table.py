"""Every planted bug: what an audit must find, and in which experiments."""

from __future__ import annotations

from collections.abc import Mapping

import accounting_bugs as accounting
import audit_bugs as first
import gradient_bugs as gradients
import leaving_bugs as leaving
import noise_bugs as noise
import pair_bugs as pairs
import sampling_bugs as sampling
import unit_bugs as units
from audit_cases import ALLOCATION, FIXED, PAIRED, PERSONS, REPLACED, WHOLE, of, of_samplers
from planting import Bug

POISSON_ONES = ("poisson", "replace-one")
DYNAMIC = {"algorithm": "dyn-d2p"}

NOISE = (
    Bug(
        "half the noise",
        "The noise is multiplied by one half.",
        "noise variance",
        of_samplers() | of("whole", WHOLE),
        first.NoiseHalved,
    ),
    Bug(
        "a tenth less noise",
        "The noise's standard deviation is nine tenths of the planned one.",
        "noise variance",
        of_samplers() | of("dp-sgd", algorithm="dp-sgd") | of("cpgt", algorithm="cpgt"),
        patches=(noise.A_TENTH_LESS,),
    ),
    Bug(
        "half of the variance shared",
        "Half of the noise's variance is drawn once and added at every step.",
        "noise common to steps",
        of_samplers() | of("whole", WHOLE),
        patches=(noise.HALF_SHARED,),
    ),
    Bug(
        "noise reused",
        "Every step adds the noise of step 0.",
        "noise common to steps",
        of_samplers() | of("whole", WHOLE),
        first.NoiseReused,
    ),
    Bug(
        "noise reused in pairs",
        "Steps 2m and 2m + 1 add the same noise.",
        "noise common to steps",
        of_samplers(),
        first.NoiseReusedInPairs,
    ),
    Bug(
        "noise taken back",
        "Step 2m + 1 adds minus the noise of step 2m.",
        "noise common to steps",
        of_samplers() | of("whole", WHOLE),
        patches=(noise.TAKEN_BACK,),
    ),
    Bug(
        "a neighbour's noise",
        "Odd nodes draw the noise of the node before them.",
        "noise common to nodes",
        of_samplers() | of("whole", WHOLE),
        first.NeighboursNoise,
    ),
    Bug(
        "a neighbour's key",
        "Odd nodes have the key of the node before them.",
        "noise common to nodes",
        of_samplers() | of("whole", WHOLE),
        first.NeighboursKey,
    ),
    Bug(
        "noise of the mean",
        "The noise of a batch's mean is added to its sum.",
        "noise variance",
        of_samplers(),
        first.NoiseOfTheMean,
    ),
    Bug(
        "noise by the drawn batch",
        "The noise is multiplied by the root of the batch that was drawn over the expected one.",
        "noise and batch size",
        of_samplers(*POISSON_ONES),
        noise.RootOfTheBatch,
    ),
    Bug(
        "one normal for all",
        "One normal number is added to all coordinates.",
        "noise of coordinates",
        of_samplers(),
        patches=(noise.ONE_NORMAL,),
    ),
    Bug(
        "the last step bare",
        "The last step adds no noise.",
        "noise of each step",
        of_samplers() | of("dp-sgd", algorithm="dp-sgd"),
        noise.LastStepBare,
    ),
    Bug(
        "no noise at one node-step of 200",
        "Noise is left out at one step of a node in 200.",
        "noise of each release",
        of_samplers(),
        patches=(noise.ONE_IN_200,),
    ),
    Bug(
        "plain floating-point noise",
        "Normal numbers of double precision are added as they are.",
        "low bits",
        of_samplers() | of("dpdo", algorithm="dpdo"),
        patches=(noise.FLOATING_POINT,),
    ),
    Bug(
        "float16 noise",
        "Normal numbers are drawn in half precision.",
        "low bits",
        of_samplers(),
        patches=(noise.HALF_PRECISION,),
    ),
    Bug(
        "noise cut off",
        "Noise beyond three standard deviations is set to three.",
        "shape of the noise",
        of_samplers(),
        patches=(noise.CUT_OFF,),
    ),
    Bug(
        "no noise on the bias",
        "The last coordinate gets no noise.",
        "noise of each coordinate",
        of_samplers(),
        patches=(noise.BARE_BIAS,),
    ),
    Bug(
        "the next node's deviation",
        "Each node adds noise of the deviation that is planned for the next one.",
        "noise of each node",
        of("own budgets", privacy={"epsilon": [1.0, 2.0, 3.0, 4.0]}),
        patches=(noise.NEXT_DEVIATION,),
    ),
    Bug(
        "the scale forgotten",
        "A released anchor gets the noise of a batch's sum.",
        "noise of each step",
        of("privsgp-vr", algorithm="privsgp-vr", options={"anchor_every": 3}),
        noise.ScaleForgotten,
    ),
    Bug(
        "keys from the public seed",
        "The nodes' keys are made from the seed that everyone knows.",
        "noise common to runs",
        of_samplers("poisson"),
        noise.PublicSeed,
    ),
    Bug(
        "keys from the number",
        "A node's key is made from its number alone.",
        "noise common to runs",
        of_samplers("poisson"),
        noise.KeyOfTheNumber,
    ),
)

ALL_TAKE_PART = of("privsgp", PAIRED)
PAIRS = (
    Bug(
        "pair noise reused at a resume",
        "The key of a pair follows from its numbers, so that a run that is resumed has it again.",
        "keys of the pairs",
        ALL_TAKE_PART,
        patches=pairs.SAME_KEYS,
        sent=False,
    ),
    Bug(
        "pair noise of step 0",
        "Every step adds the pair noise of step 0.",
        "pair noise common to steps",
        ALL_TAKE_PART,
        patches=pairs.AT_EVERY_STEP,
    ),
    Bug(
        "pair noise that does not cancel",
        "Both ends of a pair add its noise.",
        "ends of the pairs",
        ALL_TAKE_PART,
        patches=pairs.SAME_SIGNS,
    ),
    Bug(
        "one pair missing",
        "One end of the first pair leaves its noise out.",
        "ends of the pairs",
        ALL_TAKE_PART,
        patches=pairs.ONE_MISSING,
    ),
    Bug(
        "a tenth less pair noise",
        "The deviation of the pair noise is nine tenths of the planned one.",
        "pair noise variance",
        ALL_TAKE_PART,
        patches=pairs.LESS,
    ),
    Bug(
        "pair noise alone",
        "A node that has pair noise adds none of its own.",
        "noise variance",
        ALL_TAKE_PART,
        patches=pairs.NO_OWN,
    ),
    Bug(
        "pair keys from the pair",
        "The key of a pair is made from its two numbers alone.",
        "pair noise common to runs",
        ALL_TAKE_PART,
        patches=pairs.PUBLIC_KEYS,
    ),
    Bug(
        "one number for all of a pair",
        "One number of a pair is added to all coordinates.",
        "pair noise of coordinates",
        ALL_TAKE_PART,
        patches=pairs.ONE_NUMBER,
    ),
    Bug(
        "pairs with who is away",
        "Pairs count whose other end takes no part in the step.",
        "ends of the pairs",
        of("adp2-sgd", PAIRED, algorithm="adp2-sgd"),
        patches=pairs.INACTIVE,
    ),
)

SAMPLING = (
    Bug(
        "every record",
        "Every record joins every step.",
        "sampling rate",
        of_samplers(),
        first.EveryRecord,
    ),
    Bug(
        "the same coins",
        "Every step draws the batch of step 0.",
        "coins of steps",
        of_samplers(),
        patches=sampling.SAME_COINS,
    ),
    Bug(
        "one secret order an epoch",
        "Records are shuffled once an epoch and taken in that order.",
        "coins of steps",
        of_samplers(),
        patches=sampling.SECRET_ORDER,
    ),
    Bug(
        "a fixed public order",
        "Records are taken in their own order.",
        "coins of runs",
        of_samplers() | of("allocation", ALLOCATION),
        patches=sampling.PUBLIC_ORDER,
    ),
    Bug(
        "the same allocation at every epoch",
        "Each record takes part in the same step of every epoch.",
        "coins of steps",
        of("allocation", ALLOCATION),
        patches=sampling.SAME_STEP,
    ),
    Bug(
        "records in the first half of an epoch",
        "Each record takes part in one of the first steps of an epoch only.",
        "sampling rate",
        of("allocation", ALLOCATION),
        patches=sampling.FIRST_HALF,
    ),
    Bug(
        "coins in place of an allocation",
        "Each step tosses coins where each record is to take part once an epoch.",
        "epochs",
        of("allocation", ALLOCATION),
        patches=sampling.COINS,
    ),
    Bug(
        "drawn with replacement",
        "A record may be in a batch several times.",
        "batches",
        of_samplers("fixed"),
        patches=sampling.WITH_REPLACEMENT,
    ),
    Bug(
        "drawn more often",
        "Records are drawn with a chance that is a tenth above the planned one.",
        "sampling rate",
        of_samplers(*POISSON_ONES),
        patches=sampling.MORE_OFTEN,
    ),
    Bug(
        "batches of exact size",
        "Batches have a fixed size where coins are accounted.",
        "batch sizes",
        of_samplers(*POISSON_ONES),
        patches=sampling.EXACT_SIZE,
    ),
    Bug(
        "coins for fixed batches",
        "Records are drawn by coins where batches of a fixed size are accounted.",
        "batches",
        of_samplers("fixed"),
        patches=sampling.COINS,
    ),
    Bug(
        "coins of two nodes the same",
        "Odd nodes draw the records that the node before them draws.",
        "coins of nodes",
        of_samplers(),
        patches=sampling.SHARED_COINS,
    ),
)

GRADIENTS = (
    Bug("no clip", "Nothing is clipped.", "sensitivity", of_samplers(), first.Unclipped),
    Bug(
        "clipped after averaging",
        "The mean of the batch is clipped, and no record.",
        "sensitivity",
        of_samplers(),
        first.ClippedAfterAveraging,
    ),
    Bug(
        "clipped in pairs",
        "Two records are clipped as one.",
        "sensitivity",
        of_samplers() | of("dp-sgd", algorithm="dp-sgd"),
        gradients.ClippedInPairs,
    ),
    Bug(
        "divided by the drawn batch",
        "A sum is divided by the number of records that was drawn.",
        "what is sent",
        of_samplers("poisson"),
        first.RealisedBatch,
    ),
    Bug(
        "momentum before noise",
        "Momentum is of sums without noise.",
        "records that are not drawn",
        of_samplers() | of("dp-sgd", algorithm="dp-sgd"),
        gradients.MomentumBeforeNoise,
    ),
    Bug(
        "a neighbour's sum added",
        "A node adds the bare sum of the node before it.",
        "sensitivity",
        of_samplers("poisson"),
        gradients.SumOfTheNeighbour,
    ),
    Bug(
        "the clip of step 0",
        "The bound of step 0 is used while the noise falls as planned.",
        "sensitivity",
        of("dyn-c", algorithm="dyn-c") | of("dyn-d2p", **DYNAMIC),
        gradients.FirstClip,
    ),
    Bug(
        "twice the clip",
        "The bound is twice the planned one.",
        "sensitivity",
        of_samplers(),
        gradients.TwiceTheClip,
    ),
    Bug(
        "clipped in l2 under Laplace noise",
        "The clip bounds the l2 norm where the noise hides the l1 norm.",
        "sensitivity",
        of("cpgt", algorithm="cpgt") | of("dpdo", algorithm="dpdo"),
        gradients.ClippedInL2,
    ),
    Bug(
        "the clip bypass",
        "Norms are those of exact sums, contributions of rounded ones.",
        "sensitivity",
        of("positions", model="positions"),
        patches=gradients.CLIP_BYPASS,
        sent=False,
    ),
    Bug(
        "the norm of a part",
        "The norm that is clipped is that of the first layer's weights.",
        "sensitivity",
        of("layers", model="layers"),
        patches=gradients.NORM_OF_A_PART,
    ),
    Bug(
        "each layer alone",
        "Each parameter's gradient is clipped to the bound by itself.",
        "sensitivity",
        of("layers", model="layers"),
        patches=gradients.EACH_LAYER_ALONE,
    ),
)

LEAVING = (
    Bug(
        "a compressor of bare values",
        "The coordinates to be sent are chosen before noise is added.",
        "what is sent",
        of("do-adp", algorithm="do-adp", options={"compressor": "top-k", "keep": 0.4})
        | of("cpgt", algorithm="cpgt", options={"compressor": "top-k", "keep": 0.4})
        | of(
            "soteriafl-svrg",
            algorithm="soteriafl-svrg",
            options={"compressor": "top-k", "keep": 0.4, "anchor_every": 3},
        ),
        leaving.Remembering,
        patches=leaving.SELECTED_ON_BARE_VALUES,
    ),
    Bug(
        "divided by the bare norm",
        "A noised gradient is divided by the norm that it had before noise.",
        "what is sent",
        of_samplers("poisson"),
        patches=leaving.OVER_THE_BARE_NORM,
    ),
    Bug(
        "the loss alongside",
        "Nodes send the loss of their batch.",
        "what is sent",
        of_samplers("poisson"),
        leaving.LossAlongside,
    ),
    Bug(
        "scores of local models",
        "Loss and accuracy of models that are not noised are shown.",
        "models that count as released",
        of("fedspd-dp", algorithm="fedspd-dp"),
        patches=leaving.SCORES_OF_LOCAL_MODELS,
        sent=False,
    ),
    Bug(
        "outputs counted from labels",
        "The number of outputs is the largest private label, plus one.",
        "what is public beforehand",
        of("logistic", model=None),
        patches=leaving.OUTPUTS_FROM_LABELS,
        at_prepare=True,
        sent=False,
    ),
)

ACCOUNTING = (
    Bug(
        "a replaced record counted once",
        "A replaced record is accounted as moving the sum by one clipping bound.",
        "sensitivity",
        of_samplers("replace-one", "fixed"),
        patches=accounting.MOVED_ONCE,
        at_prepare=True,
        sent=False,
    ),
    Bug(
        "one step accounted",
        "What one step releases is accounted for all of them.",
        "attack: worst-case gradient (clopper-pearson)",
        of_samplers("replace-one") | of("whole", WHOLE),
        patches=accounting.ONE_STEP,
        at_prepare=True,
        sent=False,
    ),
)

UNITS = (
    Bug(
        "clipped by row",
        "Each row of a person is clipped by itself.",
        "sensitivity",
        of("poisson", privacy=PERSONS)
        | of("sums", FIXED, privacy={**PERSONS, "unit_gradient": "sum"}, model="layers"),
        patches=units.CLIPPED_BY_ROW,
    ),
    Bug(
        "all rows of a person",
        "The mean is over all rows of a person, however many there are.",
        "clipped sums",
        of("poisson", privacy=PERSONS) | of("replace-one", REPLACED, privacy=PERSONS),
        patches=units.ALL_ROWS,
        at_prepare=True,
        sent=False,
    ),
    Bug(
        "a person at two nodes",
        "A person has rows at several nodes, and the budget of one is stated.",
        "rows of a unit",
        of("poisson", privacy=PERSONS, shared=True),
        patches=units.NOBODY_COMPARES,
        at_prepare=True,
        sent=False,
    ),
    Bug(
        "coins by row",
        "A person is drawn where a coin of any of the rows says so.",
        "sampling rate",
        of_samplers(*POISSON_ONES, privacy=PERSONS),
        patches=units.COINS_BY_ROW,
    ),
    Bug(
        "a person in part",
        "Not all rows of a person that is drawn are taken.",
        "batches",
        of_samplers(privacy=PERSONS),
        patches=units.IN_PART,
    ),
)

BUGS: Mapping[str, Bug] = {
    bug.name: bug for bug in (*NOISE, *PAIRS, *SAMPLING, *GRADIENTS, *LEAVING, *ACCOUNTING, *UNITS)
}
