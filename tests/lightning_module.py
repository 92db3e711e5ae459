"""A LightningModule as anyone would write it, and a fit of it without side effects."""

import lightning.pytorch as pl
from torch.nn import functional
from torch.utils.data import DataLoader

from raw_loop import dataset, network, sgd

QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}


class Classifier(pl.LightningModule):
    """Automatic optimisation, cross-entropy, nothing about mixing."""

    def __init__(self, model=None):
        super().__init__()
        self.model = network() if model is None else model

    def forward(self, images):
        return self.model(images)

    def training_step(self, batch, batch_idx):
        images, labels = batch
        loss = functional.cross_entropy(self(images), labels)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return sgd(self)


def fit(module, *callbacks, count=3, data=None, steps=None, **options):
    """Train on three batches; returns the trainer."""
    options = {"max_steps": steps or count, "accelerator": "cpu", "devices": 1, **QUIET, **options}
    trainer = pl.Trainer(callbacks=list(callbacks), **options)
    trainer.fit(module, data if data is not None else DataLoader(dataset(count), batch_size=16))
    return trainer
