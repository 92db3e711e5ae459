"""Saliency-guided mixing for image classification.

The pipeline, and the module of each step::

    images, labels ──► clean pass ──► saliency ──► rearrange ──► MixPlan ──► mixed pass ──► .grad
                         step          saliency     rearrange      plan         step
                                       └────────── methods ────────────┘

A method (`SAGE`, `Mixup`, …) is a frozen value of settings that draws a `MixPlan`; `accumulate` runs a whole step with it::

    step = accumulate(SAGE(), model, images, labels)
    optimizer.step(); optimizer.zero_grad(set_to_none=True)
"""

from mixsage import data, hidden, loss, models, plan, rearrange, saliency, sampling, warp
from mixsage.dense import MixedBoxes
from mixsage.host import DDPHost, Host, ScalerHost
from mixsage.loss import binary_cross_entropy, cross_entropy, pixel_cross_entropy
from mixsage.methods import CleanPass, Mixer, available, get
from mixsage.methods.clean import Clean
from mixsage.methods.comixup import CoMixup
from mixsage.methods.cutmix import CutMix
from mixsage.methods.manifold import ManifoldMixup
from mixsage.methods.mixup import Mixup
from mixsage.methods.puzzlemix import PuzzleMix
from mixsage.methods.sage import SAGE
from mixsage.methods.saliencymix import SaliencyMix
from mixsage.plan import Blocks, Boxes, MixPlan, Shift
from mixsage.rearrange import Full, Guided, NoShift, Paste, Sampled
from mixsage.saliency import FineGrained, InputGradient, Uniform
from mixsage.step import Step, accumulate

__version__ = "0.1.0"

__all__ = [
    "SAGE",
    "Blocks",
    "Boxes",
    "Clean",
    "CleanPass",
    "CoMixup",
    "CutMix",
    "DDPHost",
    "FineGrained",
    "Full",
    "Guided",
    "Host",
    "InputGradient",
    "ManifoldMixup",
    "MixPlan",
    "MixedBoxes",
    "Mixer",
    "Mixup",
    "NoShift",
    "Paste",
    "PuzzleMix",
    "SaliencyMix",
    "Sampled",
    "ScalerHost",
    "Shift",
    "Step",
    "Uniform",
    "accumulate",
    "available",
    "binary_cross_entropy",
    "cross_entropy",
    "data",
    "get",
    "hidden",
    "loss",
    "models",
    "pixel_cross_entropy",
    "plan",
    "rearrange",
    "saliency",
    "sampling",
    "warp",
]
