"""A LightningModule trained by SAGE, gradient reuse and all: one callback, and no change of the module.

python examples/lightning_.py [--epochs 2]
"""

from __future__ import annotations

import argparse
import logging

import lightning.pytorch as pl
import torch
from torch.nn.functional import cross_entropy

import mixsage
from mixsage.data import MEAN, STD, load_sample
from mixsage.integrations.lightning import Mixing


class Classifier(pl.LightningModule):
    """As anyone would write it; it knows nothing of mixing."""

    def __init__(self) -> None:
        super().__init__()
        self.model = mixsage.models.small_convnet(num_classes=10)

    def training_step(self, batch, batch_idx):
        images, labels = batch
        loss = cross_entropy(self.model(images), labels)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        self.log("accuracy", (self.model(images).argmax(1) == labels).float().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9, nesterov=True)


def batches(split: str, *, shuffle: bool = False) -> torch.utils.data.DataLoader:
    images, labels = load_sample(split)
    data = torch.utils.data.TensorDataset((images / 255 - MEAN[0]) / STD[0], labels)
    return torch.utils.data.DataLoader(data, batch_size=100, shuffle=shuffle, drop_last=shuffle)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    pl.seed_everything(0, verbose=False)
    trainer = pl.Trainer(
        callbacks=[Mixing(mixsage.SAGE(num_classes=10))],  # the only line about mixing
        max_epochs=options.epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Classifier(), batches("train", shuffle=True), batches("test"))
    for name, value in sorted(trainer.callback_metrics.items()):
        print(f"{name}: {value:.3f}")


if __name__ == "__main__":
    main()
