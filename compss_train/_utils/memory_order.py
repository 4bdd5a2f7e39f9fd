"""``memory_order``: how the dimensions of a tensor lie in memory."""

import torch


def memory_order(tensor: torch.Tensor) -> list[int]:
    """Return the dimensions by falling strides, in which order a dense tensor is contiguous.

    Others, with gaps or overlaps, have the order of their dimensions.
    """
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    return order if tensor.permute(order).is_contiguous() else [*range(tensor.dim())]
