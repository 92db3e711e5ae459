"""SAGE where timm's training script has its Mixup: the same call, the same switches, timm's model, loss, optimizer and averages.

python examples/timm_.py [--epochs 2]
"""

from __future__ import annotations

import argparse

import timm
import torch
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.utils import ModelEmaV3, NativeScaler

import mixsage
from mixsage.data import MEAN, STD, load_sample
from mixsage.integrations.timm import Mixing


def batches(split: str, *, shuffle: bool = False) -> torch.utils.data.DataLoader:
    images, labels = load_sample(split)
    data = torch.utils.data.TensorDataset((images / 255 - MEAN[0]) / STD[0], labels)
    return torch.utils.data.DataLoader(data, batch_size=100, shuffle=shuffle, drop_last=shuffle)


@torch.no_grad()
def accuracy(model: torch.nn.Module) -> float:
    model.eval()
    return float(torch.cat([(model(x).argmax(1) == y).float() for x, y in batches("test")]).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument(
        "--mixup-off-epoch", type=int, default=1, help="train the last epochs on plain images, as timm's script can"
    )
    options = parser.parse_args()

    torch.manual_seed(0)
    model = timm.create_model("test_resnet", in_chans=1, num_classes=10)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=3e-3, weight_decay=0.02)
    model_ema, loss_scaler = ModelEmaV3(model, decay=0.9), NativeScaler("cpu")
    # In place of timm.data.Mixup, which has the same call and switches.
    mixup_fn = Mixing(mixsage.SAGE(num_classes=10), label_smoothing=0.1, model=model)
    loss_fn = SoftTargetCrossEntropy()

    for epoch in range(options.epochs):
        if epoch >= options.mixup_off_epoch:
            mixup_fn.mixup_enabled = False
        model.train()
        for x, target in batches("train", shuffle=True):
            x, target = mixup_fn(x, target)
            loss = loss_fn(model(x), target)
            optimizer.zero_grad()
            loss_scaler(loss, optimizer, clip_grad=1.0, parameters=model.parameters())
            model_ema.update(model)
        print(
            f"epoch {epoch + 1}: loss {loss:.3f}, test accuracy {accuracy(model):.1%}, of the average {accuracy(model_ema.module):.1%}"
        )


if __name__ == "__main__":
    main()
