"""An image classifier of Transformers', trained by its Trainer with SAGE.

python examples/transformers_.py [--epochs 2]
"""

from __future__ import annotations

import argparse
import tempfile

import torch
from transformers import ResNetConfig, ResNetForImageClassification, Trainer, TrainingArguments, ViTImageProcessor

import mixsage
from mixsage.data import MEAN, STD, load_sample
from mixsage.integrations.transformers import Mixing


class MixingTrainer(Mixing, Trainer):
    """The Trainer, mixing."""


def pictures(split: str) -> list[tuple[torch.Tensor, int]]:
    images, labels = load_sample(split)
    return list(zip(images, labels.tolist(), strict=True))


processor = ViTImageProcessor(do_resize=False, do_convert_rgb=False, image_mean=list(MEAN), image_std=list(STD))


def collate(samples: list[tuple[torch.Tensor, int]]) -> dict[str, torch.Tensor]:
    images = processor([image for image, _ in samples], return_tensors="pt", input_data_format="channels_first")
    return {**images, "labels": torch.tensor([label for _, label in samples])}


def accuracy(prediction) -> dict[str, float]:
    return {"accuracy": float((prediction.predictions.argmax(1) == prediction.label_ids).mean())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()

    torch.manual_seed(0)
    sizes = {"embedding_size": 16, "hidden_sizes": [16, 32, 64], "depths": [1, 1, 1], "layer_type": "basic"}
    model = ResNetForImageClassification(ResNetConfig(num_channels=1, num_labels=10, **sizes))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            num_train_epochs=options.epochs,
            per_device_train_batch_size=100,
            per_device_eval_batch_size=100,
            learning_rate=3e-3,
            use_cpu=True,
            remove_unused_columns=False,  # the samples are not columns: the collator makes them
            dataloader_pin_memory=False,
            disable_tqdm=True,
            report_to=[],
            save_strategy="no",
            logging_steps=25,
        )
        trainer = MixingTrainer(
            model,
            arguments,
            mixer=mixsage.SAGE(),  # the only line about mixing
            train_dataset=pictures("train"),
            eval_dataset=pictures("test"),
            data_collator=collate,
            compute_metrics=accuracy,
        )
        trainer.train()
        print(f"test accuracy {trainer.evaluate()['eval_accuracy']:.1%}")


if __name__ == "__main__":
    main()
