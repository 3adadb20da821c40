"""Batch normalization whose statistics go through NCCL: by vectors (c,), as a state's are read, with few launches."""

from __future__ import annotations

import mlx.core as mx

from mpsfunc.channels import accumulation, rules
from mpsfunc.channels.rules import StatGroups
from mpsfunc.normalization import across_processes, batch_rules
from mpsfunc.normalization.across_processes import Group
from mpsfunc.normalization.batch_rules import NormSpec

Vector = mx.array  # (c,)


def normalized(
    x: mx.array, added: mx.array | None, given: tuple[Vector, Vector], group: Group, by: NormSpec
) -> tuple[mx.array, Vector, Vector, mx.array]:
    """The images, and mean, variance and count of all processes' images; ``given`` is scale and shift."""
    n, h, w, _ = x.shape
    mean, var = rules.of_the_group(rules.bn_stats(x, StatGroups(1, by.stream)))
    elements, of = mx.array(n * h * w, mx.int64), across_processes.Spec(group, by.stream)
    mean, var, count = across_processes.merged_by_nccl(mean, var, elements, of)
    if added is None:
        return batch_rules.bn_normalize_by(x, mean, var, *given, by), mean, var, count
    return batch_rules.bn_normalize_add_by(x, added, (mean, var), given, by), mean, var, count


def gradients(
    dy: mx.array,
    x: mx.array,
    given: tuple[Vector, Vector],
    statistics: tuple[Vector, Vector],
    count: mx.array,
    group: Group,
    by: NormSpec,
) -> tuple[mx.array, Vector, Vector]:
    """Those of the images, from all processes' losses, and of scale and shift, from this process's."""
    none = accumulation.constant(0.0, x.shape[3], mx.float32)
    dgamma, dbeta = batch_rules.bn_stats_grad_by(dy, x, statistics, (none, none), given, by)
    sums = across_processes.total_by_nccl(dgamma, dbeta, across_processes.Spec(group, by.stream))
    return batch_rules.bn_grad_by(dy, x, statistics, sums, given, count, by), dgamma, dbeta
