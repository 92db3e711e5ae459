"""Images and labels to train and evaluate on.

`load("cifar10")` gives a data set by name, folder or hub id: see `mixsage.data.sources`. `feed(…)` makes batches of it on a device,
in an order and with crops that depend on nothing but the seed, the epoch and the number of the batch: see `mixsage.data.feeds`.
`load_sample("train")` gives the tensors of the embedded sample, which needs no download: see `mixsage.data.sample`.
"""

from mixsage.data.decode import CorruptImage, decode
from mixsage.data.feeds import Batch, Feed, ResidentFeed, StreamedFeed, feed
from mixsage.data.sample import CLASSES, MEAN, STD, Sample, load_sample
from mixsage.data.seeds import generator
from mixsage.data.sources import NAMES, DataError, DataSet, Images, hold_out, load, mini_imagenet_classes, per_class, read_image

__all__ = [
    "CLASSES",
    "MEAN",
    "NAMES",
    "STD",
    "Batch",
    "CorruptImage",
    "DataError",
    "DataSet",
    "Feed",
    "Images",
    "ResidentFeed",
    "Sample",
    "StreamedFeed",
    "decode",
    "feed",
    "generator",
    "hold_out",
    "load",
    "load_sample",
    "mini_imagenet_classes",
    "per_class",
    "read_image",
]
