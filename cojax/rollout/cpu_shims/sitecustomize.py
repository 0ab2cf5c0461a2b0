"""Lets `import torchvision` succeed beside CPU PyTorch, whose binary would define the operators declared here."""

import contextlib

with contextlib.suppress(ImportError):
    import torch

    _torchvision = torch.library.Library("torchvision", "DEF")
    _torchvision.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _torchvision.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
