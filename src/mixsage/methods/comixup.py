"""Co-Mixup (Kim et al., ICLR 2021)."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Generator, Tensor

from mixsage import sampling
from mixsage.methods.base import CleanPass, Mixer, check_count, check_kind, check_positive, check_range
from mixsage.plan import MixPlan
from mixsage.saliency import InputGradient, Saliency
from mixsage.solvers.comixup import Parts, Weights, inputs_of_outputs, joint_problem
from mixsage.solvers.joint import solve


@dataclass(frozen=True, kw_only=True)
class CoMixup(Mixer):
    """Mix several images into as many at once: every output shows what is salient, in few pieces, and the outputs differ.

    Example:
        >>> import mixsage, torch
        >>> model = mixsage.models.preactresnet18(width=8)
        >>> step = mixsage.accumulate(CoMixup(), model, torch.rand(4, 3, 32, 32), torch.arange(4))
    """

    per_sample: bool = False
    """Makes no difference: the shares of every output are chosen for it alone, and the prior is one for each part."""
    alpha: float = 2.0
    """Concentration of the Dirichlet distribution that the inputs' shares are expected to follow [α]."""
    smoothness: float = 0.32
    """Cost of a border between blocks with different inputs [β]."""
    diversity: float = 1.0
    """Cost of inputs that the other outputs use more than the threshold [γ]."""
    prior: float = 0.05
    """Weight of the prior on the inputs' shares [η]."""
    threshold: float = 0.83
    """Use by the other outputs, in pictures, up to which it costs nothing [τ]."""
    compatibility: float = 0.001
    """How much the use of inputs counts that are salient elsewhere, beside that of the input itself [ω]."""
    part: int = 20
    """Images that are mixed with one another at most; a batch is cut into equal parts, to the image."""
    grid: int = 4
    """Blocks along a side; no more than the shorter side of the images has pixels."""
    iterations: int = 4
    """How often every output is chosen anew."""
    starts: int = 2
    """Random starts of the search, side by side, of which the better end is kept; the authors have one."""
    clean_weight: float = 1.0
    """Weight of the clean batch's gradient beside that of the mixed batch."""
    saliency: Saliency = field(default_factory=InputGradient)
    """Where the saliency comes from."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("alpha", self.alpha)
        for name in ("smoothness", "diversity", "prior", "threshold", "clean_weight"):
            check_range(name, getattr(self, name), 0, 1e6)
        check_range("compatibility", self.compatibility, 0, 1)
        for name, least in (("part", 2), ("grid", 1), ("iterations", 1), ("starts", 1)):
            check_count(name, getattr(self, name), least)
        check_kind("saliency", self.saliency, Saliency, "InputGradient() or Uniform()")

    @property
    def source(self) -> Saliency:
        """Where the saliency comes from."""
        return self.saliency

    @property
    def clean(self) -> CleanPass | None:
        """The clean pass yields the saliency, and its parameter gradient is a part of the step."""
        if not (self.clean_weight or self.saliency.needs_gradient):
            return None
        return CleanPass(mode=getattr(self.saliency, "mode", "train"), weight=self.clean_weight)

    def draw(self, images: Tensor, labels: Tensor | None, saliency: Tensor | None, generator: Generator | None) -> MixPlan:
        """The prior and the starts; the best outputs found; and the inputs of each."""
        assert saliency is not None
        device, side = images.device, min(self.grid, *images.shape[-2:])
        parts = Parts.of(len(images), self.part)
        expected = sampling.dirichlet(self.alpha, parts.member, generator).to(device, non_blocking=True)
        starts = parts.draw_members((self.starts, parts.rows.shape[1], side**2), generator).to(device, non_blocking=True)
        parts = parts.to(device)
        weights = Weights(
            smoothness=self.smoothness,
            diversity=self.diversity,
            prior=self.prior,
            threshold=self.threshold,
            compatibility=self.compatibility,
        )
        problem = joint_problem(saliency, expected, parts, side, weights)
        sources, masks = inputs_of_outputs(solve(problem, starts, self.iterations, apart=self.diversity), parts)
        return MixPlan(sources=sources, masks=masks)
