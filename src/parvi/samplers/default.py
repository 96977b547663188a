"""The default: an affine flow, then a flow that bends, and a test of the particles.

1. **affine** applies affine maps until the KL rate is below the level of sampling noise. With too
   few particles to bend, it runs for longer (**affine alone**), unless a few lone descents end on
   hills of their own (**part**), as networks do. Then all particles **descend** alone, and
   **explore hills** makes Hamiltonian transitions there.
2. **scout** lets some first particles descend alone. If some end behind a valley, **weigh** climbs
   to the peaks there. If the mass of these peaks counts, more scouts look for further ones (**scout
   more**, **weigh more**). **temper** follows a path, with weights, from a Gaussian that covers all
   of them, and from the peaks too if these differ much; **balance** weighs every mode by itself. If
   the weights are not clearly more exact than those of independent draws, a longer path follows
   (**temper longer**, **balance again**).
3. **straighten** looks for coordinates in which the particles are closer to a Gaussian. If it finds
   some, all later stages work there, beginning with **affine straight**; **straighten again** fits
   them anew, and **affine again** follows.
4. **bend** moves along random features, in rounds, until only the features' noise is left.
5. If the Fisher information is far from a Gaussian's, the features miss part of the error:
   **fly** makes Hamiltonian transitions. The particles may now bend enough to show coordinates that
   were not found before (**straighten flown**).
6. **settle** bends after a path; **verify modes** tests each mode by itself.
7. **verify** makes a few Hamiltonian transitions. If they leave means and variances where they
   are, the run has CONVERGED, and the particles are those from before the test. If they do not,
   and also after a flight or in new coordinates, **explore** makes transitions until nothing
   drifts; a run that does not come to rest ends as NOT_AT_REST. **straighten once more** and
   **explore again** follow in coordinates that are fitted to the places reached. If leaders have
   become wider since, there is more of a tail than the coordinates have seen, and **straighten
   further** and **explore further** follow. **gather** makes further transitions and takes the
   particles that sum them up, **polish** bends once more, and **compare** asks whether the
   polished particles still have the moments of all places that were visited; if not, the polish is
   undone. In new coordinates (**compare straight**) a polish mostly finds more of a tail than the
   visits did, so **explore polished** goes on from it, and **gather again** ends the run.

8. In up to eight dimensions, **survey** weighs draws from all around the particles. If the target
   has mass where no particle is, and no path was followed before, **temper wide** follows one from
   a Gaussian that covers this mass too. **balance wide** and **explore wide** come after it, and
   **survey again** looks once more. If such mass is left, the run ends as NOT_AT_REST.

More than 8192 particles with more than a million numbers in all neither bend nor fly: as
independent draws they are exact enough. If they fail the test, **explore some** moves 8192 of them
until nothing drifts, and all of them **follow** with as many transitions.
"""

from parvi.fields.clipped import Clipped
from parvi.fields.framed import Standardised, WhereTold, Whitened
from parvi.fields.pfg.closed_form import Irrotational
from parvi.fields.pfg.field import PFG
from parvi.fields.pfg.functions import Linear, Scaling
from parvi.fields.pfg.preconditioners import StandardisedCurvature, WhitenedCurvature
from parvi.samplers.apart import Apart
from parvi.samplers.balance import Balance
from parvi.samplers.bend import Bend
from parvi.samplers.descend import Descend
from parvi.samplers.explore import Explore
from parvi.samplers.flow import Flow
from parvi.samplers.fly import Fly
from parvi.samplers.follow import Follow
from parvi.samplers.gather import Compare, Gather
from parvi.samplers.networks import large_network
from parvi.samplers.part import Part
from parvi.samplers.scout import Scout
from parvi.samplers.sequence import (
    After,
    AtRest,
    Both,
    Either,
    EnoughToBend,
    FarFromGaussian,
    Few,
    FewDimensions,
    Many,
    Not,
    RestsAfter,
    Sequence,
    Stage,
    TooFewToBend,
)
from parvi.samplers.straighten import Straighten
from parvi.samplers.survey import Survey
from parvi.samplers.temper import Temper
from parvi.samplers.verify import Verify
from parvi.samplers.weigh import Weigh
from parvi.status import Status
from parvi.steppers import LineSearch, TrustRegion
from parvi.stopping import KLRate

# The stages of exploring, of which the last has to come to rest.
_EXPLORES = ("explore", "explore again", "explore further")


def affine(
    share: float = 0.01, patience: int = 5, endurance: int | None = None, max_steps: int = 5000
) -> Flow:
    """Linear PFG in closed form, in the particles' own coordinates, with a line search.

    Parameters
    ----------
    share, patience, endurance
        Settings of the stopping rule ``KLRate``.
    max_steps
        The largest number of steps.
    """
    whitened = Whitened(Clipped(PFG(Linear(), WhitenedCurvature(), Irrotational())))
    scaled = Standardised(Clipped(PFG(Scaling(), StandardisedCurvature(), Irrotational())))
    stepper = TrustRegion(LineSearch(), grow=2.0)
    return Flow(WhereTold(whitened, scaled), stepper, KLRate(share, patience, endurance), max_steps)


def pfg(num_features: int | None = None, max_steps: int = 20_000) -> Sequence:
    """The default: PFG with nothing to tune, which stops by itself.

    It first fits affine maps in closed form, in the particles' own coordinates, then maps that
    bend, along random features that are frozen for a round. If the target is far from Gaussian,
    Hamiltonian transitions and further rounds follow; if it has separated modes, a tempered path
    with weights. With fewer than 1.5 particles per dimension and more hills than particles, as
    networks have, every particle descends alone and makes Hamiltonian transitions on its own hill.
    A run that ends as ``CONVERGED`` has tested its particles by Hamiltonian transitions; one that
    does not pass the test goes on, and ends as ``NOT_AT_REST`` if it never does.

    All of this needs a log density that is the same at every step. Of a ``parvi.MiniBatch`` it
    therefore uses all rows or, if these are too expensive, subsets corrected by all rows. A run
    whose subsets are still too noisy at the end, or that has too few particles to correct them,
    ends as ``NOISY``: see ``parvi.MiniBatch``.

    Parameters
    ----------
    num_features
        Number of features of the maps that bend: None for n / 8, at most 128; 0 for affine maps
        only, without any test.
    max_steps
        The largest number of steps.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, parvi
    >>> start = jax.random.normal(jax.random.key(0), (128, 2))
    >>> result = parvi.sample(lambda x: -0.5 * jnp.sum((x - 3) ** 2), start)
    >>> print(result.status)
    CONVERGED
    >>> bool(abs(result.particles.mean() - 3) < 1e-2)
    True
    """
    if num_features == 0:
        return Sequence(Stage("affine alone", affine()), max_steps=max_steps)
    # Rounds on several hills do not end, and later stages find out what is wrong.
    bend, settle = Bend(num_features, patience=30), Bend(num_features, patience=10)
    bends, few = EnoughToBend(bend), TooFewToBend(bend)
    lost = Status.NOT_AT_REST
    # Runs that bend mostly need 5 to 30 affine steps; with two particles per dimension a
    # classifier of digits was still not at rest after 2000.
    first = affine(share=0.1, patience=2, endurance=50)
    parted, alone = After("part", lost), Both(few, Not(After("part", lost)))
    hill, tempered = Both(bends, Not(After("temper"))), After("temper")
    # A target that was far from a Gaussian, in its own coordinates or in these, has tails that a
    # few transitions do not reach, so a short test would say nothing.
    early = After("straighten")
    straight = Either(early, After("straighten flown"))
    curved = Either(straight, After("fly"))
    unsure = Either(After("verify", lost), Both(hill, curved))
    explored = Both(RestsAfter(_EXPLORES), Not(After("gather")))
    gathered = After("gather", Status.CONVERGED)
    rests = Either(gathered, explored)
    some, many = After("explore some", Status.CONVERGED), Many()
    bent = Both(hill, Not(many))
    verify = Verify(better_than_draws=True)
    # No flight crosses from mode to mode, so it only tests them one by one.
    within = Verify(better_than_draws=True, least_mobility=0.0)
    # Nor does one cross from hill to hill; another window would take as long as all windows
    # before.
    hills = Explore(num_windows=3, most_leapfrogs=25)
    polished = ("polish", "polish alone")
    rested = AtRest(undone=("compare", "verify again"))
    # A path has already covered what scouts found, and its weights are in the target's coordinates.
    missed = Both(After("survey", lost), Not(Either(straight, tempered)))
    widened = After("temper wide")
    return Sequence(
        Stage("affine", first, when=bends),
        Stage("part", Part(), when=few),
        Stage("affine alone", affine(), when=alone),
        Stage("descend", Descend(), when=parted),
        Stage("explore hills", hills, when=parted),
        Stage("scout", Scout(), when=bends),
        Stage("weigh", Weigh(), when=After("scout", lost)),
        Stage("scout more", Scout(num_more=128), when=After("weigh", lost)),
        Stage("weigh more", Weigh(), when=After("scout more")),
        Stage("temper", Temper(most_passes=4), when=After("weigh more", lost)),
        Stage("balance", Balance(share=0.7), when=Both(tempered, Few())),
        Stage("temper longer", Temper(num_passes=12), when=After("balance", lost)),
        Stage("balance again", Balance(), when=After("temper longer")),
        Stage("straighten", Straighten(), when=bent),
        Stage("affine straight", first, when=early),
        Stage("straighten again", Straighten(), when=early),
        Stage("affine again", first, when=After("straighten again")),
        Stage("bend", bend, when=bent),
        Stage("fly", Fly(), when=Both(bent, FarFromGaussian())),
        Stage("straighten flown", Straighten(), when=Both(After("fly"), Not(early))),
        Stage("settle", settle, when=tempered, back_to=("settle",)),
        Stage("verify modes", within, when=tempered, back_to=("settle",)),
        Stage("explore modes", Explore(least_mobility=0.0), when=After("verify modes", lost)),
        Stage("verify", verify, when=Both(Not(curved), Either(hill, alone))),
        Stage("explore", Explore(window=16), when=Both(unsure, Not(many))),
        Stage("explore some", Apart(Explore(window=16)), when=Both(unsure, many)),
        Stage("follow", Follow(), when=some),
        Stage("straighten once more", Straighten(), when=straight),
        Stage("explore again", Explore(window=16), when=After("straighten once more")),
        Stage("straighten further", Straighten(least_growth=0.1), when=straight),
        Stage("explore further", Explore(window=16), when=After("straighten further")),
        Stage("gather", Gather(), when=Both(explored, Few())),
        Stage("polish", Bend(num_features, fall=0.1, patience=30), when=Both(bends, rests)),
        Stage("polish alone", affine(), when=Both(few, rests)),
        Stage("compare", Compare(), when=Both(gathered, Not(straight)), back_to=polished),
        Stage("compare straight", Compare(), when=Both(gathered, straight)),
        Stage("explore polished", Explore(window=16), when=After("compare straight", lost)),
        Stage("gather again", Gather(), when=After("explore polished", Status.CONVERGED)),
        Stage("verify again", verify, when=Either(explored, some), back_to=polished),
        Stage("survey", Survey(), when=Both(FewDimensions(), Both(bends, rested))),
        Stage("temper wide", Temper(num_passes=12), when=missed),
        Stage("balance wide", Balance(), when=Both(widened, Few())),
        Stage("explore wide", Explore(least_mobility=0.0), when=widened),
        Stage("survey again", Survey(), when=Both(widened, AtRest())),
        max_steps=max_steps,
        for_batches=Sequence(Stage("network", large_network(min(500, max_steps)))),
    )
