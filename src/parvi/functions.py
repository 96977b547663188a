"""Function classes: what is fitted to the preconditioned Wasserstein gradient."""

from parvi.fields.pfg.functions import MLP as MLP
from parvi.fields.pfg.functions import Linear as Linear
from parvi.fields.pfg.functions import Network as Network
from parvi.fields.pfg.functions import RandomFeatures as RandomFeatures
from parvi.fields.pfg.functions import Scaling as Scaling
