"""Images and labels to train and evaluate on.

`load_sample("train")` gives the embedded sample, which needs no download: see `mixsage.data.sample`.
"""

from mixsage.data.sample import CLASSES, MEAN, STD, Sample, load_sample

__all__ = ["CLASSES", "MEAN", "STD", "Sample", "load_sample"]
