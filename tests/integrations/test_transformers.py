"""The mixin: a real Trainer takes the steps of the raw loop."""

from functools import partial

import pytest
import torch
from transformers import (
    ResNetConfig,
    ResNetForImageClassification,
    Trainer,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessor,
    default_data_collator,
)

from helpers import seeded
from mixsage import SAGE, Host, accumulate
from mixsage.data import load_sample
from mixsage.integrations.transformers import Mixing
from mixsage.loss import binary_cross_entropy, cross_entropy
from raw_loop import MIXERS, SEED, assert_same, batches, dataset, raw_loop, sgd


class InOrder(Mixing, Trainer):
    """A Trainer without a shuffle, so that its batches are those of the raw loop."""

    def _get_train_sampler(self, *_):
        return None


class Logits(Host):
    """What the raw loop needs to know of a model of Transformers'."""

    def forward(self, model, images):
        return model(pixel_values=images).logits


def resnet():
    torch.manual_seed(0)
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}
    return ResNetForImageClassification(ResNetConfig(num_channels=1, num_labels=10, **sizes)).train()


def vit():
    torch.manual_seed(0)
    sizes = {"image_size": 28, "patch_size": 7, "hidden_size": 16, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "intermediate_size": 32}
    return ViTForImageClassification(ViTConfig(num_channels=1, num_labels=10, **sizes, **heads)).train()


def samples(count=3):
    return [{"pixel_values": image, "label": int(label)} for image, label in dataset(count)]


def trainer(folder, model, mixer, *, count=3, every=1, kind=InOrder, arguments=(), **options):
    settings = {
        "max_steps": count // every,
        "per_device_train_batch_size": 16,
        "gradient_accumulation_steps": every,
        "use_cpu": True,
        "max_grad_norm": 0.0,
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
        "logging_steps": 1,
        "dataloader_pin_memory": False,
    } | dict(arguments)
    optimizer = sgd(model)
    constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    options = {"generator": seeded(SEED), "train_dataset": samples(count), "optimizers": (optimizer, constant), **options}
    return kind(model, TrainingArguments(str(folder), **settings), mixer=mixer, **options)


@pytest.mark.parametrize("make", [resnet, vit])
@pytest.mark.parametrize("name", MIXERS)
def test_three_steps_are_those_of_the_raw_loop(tmp_path, make, name):
    model = make()
    trainer(tmp_path, model, MIXERS[name]).train()
    assert_same(model, raw_loop(MIXERS[name], make(), host=Logits()))


@pytest.mark.parametrize("name", ["sage", "sage without reuse", "cutmix"])
def test_gradient_accumulation(tmp_path, name):
    model = resnet()
    trainer(tmp_path, model, MIXERS[name], count=6, every=2).train()
    assert_same(model, raw_loop(MIXERS[name], resnet(), batches(6), every=2, host=Logits()))


def test_the_loss_that_is_logged_is_that_of_the_step(tmp_path):
    run = trainer(tmp_path, resnet(), SAGE())
    run.train()
    logged = [float(entry["loss"]) for entry in run.state.log_history if "loss" in entry]
    images, labels = batches()[0]
    step = accumulate(SAGE(), resnet(), images, labels, generator=seeded(SEED), host=Logits())
    assert len(logged) == 3
    assert logged[0] == pytest.approx(step.loss.item(), rel=1e-3)


def test_label_smoothing_of_the_arguments(tmp_path):
    model = resnet()
    trainer(tmp_path, model, SAGE(), arguments={"label_smoothing_factor": 0.2}).train()
    smoothed = partial(cross_entropy, label_smoothing=0.2)
    assert_same(model, raw_loop(SAGE(), resnet(), host=Logits(), criterion=smoothed))


def test_another_loss(tmp_path):
    model = resnet()
    trainer(tmp_path, model, SAGE(), criterion=binary_cross_entropy).train()
    assert_same(model, raw_loop(SAGE(), resnet(), host=Logits(), criterion=binary_cross_entropy))


def test_a_loss_on_the_models_output_is_refused(tmp_path):
    with pytest.raises(ValueError, match="compute_loss_func"):
        trainer(tmp_path, resnet(), SAGE(), compute_loss_func=lambda *_, **__: None)


@pytest.mark.parametrize("mixer", ["sage", SAGE, None])
def test_a_method_is_a_value(tmp_path, mixer):
    with pytest.raises(TypeError, match=r"mixer must be a Mixer, such as SAGE\(\)"):
        trainer(tmp_path, resnet(), mixer)


def test_bfloat16(tmp_path):
    model = resnet()
    trainer(tmp_path, model, SAGE(), arguments={"bf16": True}).train()
    expected = resnet()
    optimizer, generator = sgd(expected), seeded(SEED)
    for images, labels in batches():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            accumulate(SAGE(), expected, images, labels, generator=generator, host=Logits())
        optimizer.step()
        optimizer.zero_grad()
    assert_same(model, expected)


def test_evaluation_stays_as_it_is(tmp_path):
    run = trainer(tmp_path, resnet(), SAGE(), eval_dataset=samples(1))
    images, labels = batches(1)[0]
    expected = torch.nn.functional.cross_entropy(resnet().eval()(pixel_values=images).logits, labels)
    assert run.evaluate()["eval_loss"] == pytest.approx(expected.item(), rel=1e-4)


def test_a_processor_in_the_collator(tmp_path):
    """Raw bytes in the data set, normalised where batches are made."""
    images, labels = load_sample("train")
    processor = ViTImageProcessor(do_resize=False, do_convert_rgb=False, image_mean=[0.5], image_std=[0.5])

    def collate(batch):
        pictures = processor([image for image, _ in batch], return_tensors="pt", input_data_format="channels_first")
        return {**pictures, "labels": torch.tensor([label for _, label in batch])}

    model = resnet()
    data = [(image, int(label)) for image, label in zip(images[:48], labels[:48], strict=True)]
    arguments = {"remove_unused_columns": False}
    trainer(tmp_path, model, SAGE(), train_dataset=data, data_collator=collate, arguments=arguments).train()
    pictures = ((images[:48] / 255 - 0.5) / 0.5).split(16)
    assert_same(model, raw_loop(SAGE(), resnet(), list(zip(pictures, labels[:48].split(16), strict=True)), host=Logits()))


def test_further_inputs_reach_the_model(tmp_path):
    """Pictures of another size than the ViT was made for, which it takes when it is told to."""

    def collate(batch):
        pictures = default_data_collator(batch)
        pictures["pixel_values"] = torch.nn.functional.interpolate(pictures["pixel_values"], size=(42, 42))
        return pictures | {"interpolate_pos_encoding": True}

    run = trainer(tmp_path, vit(), SAGE(), data_collator=collate)
    assert run.train().global_step == 3


def test_other_batches_are_refused(tmp_path):
    run = trainer(tmp_path, resnet(), SAGE(), data_collator=lambda batch: {"pixel_values": torch.rand(16, 1, 28, 28)})
    with pytest.raises(ValueError, match=r"'pixel_values' and 'labels', got \[\]"):
        run.train()


def test_choices_continue_after_a_checkpoint(tmp_path):
    """The Trainer keeps torch's default generator, which is the one that choices come from if none is given."""
    arguments = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "seed": 3}
    whole = resnet()
    trainer(tmp_path, whole, SAGE(), count=4, generator=None, arguments=arguments).train()
    resumed = resnet()
    run = trainer(tmp_path / "second", resumed, SAGE(), count=4, generator=None, arguments=arguments)
    run.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert_same(resumed, whole)
