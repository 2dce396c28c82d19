"""Under torchrun: train heads in float64 in one process, then over all, and print the largest differences of a weight.

    torchrun --nproc-per-node 2 tests/both_ways.py FOLDER HEAD ...

(Used by the tests of studies.)"""

import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from anyshot.train.batches import training_batches
from anyshot.train.training import Learner
from helpers.own_study import REGISTRY, recipe, store


def trained(model, part):
    """The weights after the updates of a whole training."""
    learner = Learner(model, REGISTRY, part.items.shape[-1], "cpu")
    learner.model.train()
    epochs = (training_batches(part.labels, model.way, model.train_shot, 0, epoch) for epoch in range(model.epochs))
    batches = [batch for epoch in epochs for batch in epoch]
    for step, batch in enumerate(batches):
        target = torch.arange(len(batch)).repeat_interleave(batch.shape[1])
        images = np.ascontiguousarray(part.items[batch.ravel()])
        learner.update(images, target, batch.shape[1], step, model.learning_rate(step / len(batches)))
    return learner.model.state_dict()


def main(folder, *heads):
    torch.set_default_dtype(torch.float64)
    torch.Tensor.float = torch.Tensor.double  # images and features become float() on their way
    torch.set_num_threads(1)
    part = store(Path(folder)).part("train")
    alone = {head: trained(recipe(head), part) for head in heads}
    dist.init_process_group("gloo")
    for head in heads:
        shared = trained(recipe(head), part)
        assert all(value.dtype != torch.float32 for value in shared.values())
        if dist.get_rank() == 0:
            print(head, max(float((shared[name] - value).abs().max()) for name, value in alone[head].items()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
