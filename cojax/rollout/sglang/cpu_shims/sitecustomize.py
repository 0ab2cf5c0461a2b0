"""Gives SGLang on a CPU the parts of PyTorch and CUDA that it expects: see README.md."""

import contextlib
import types

with contextlib.suppress(ImportError):
    import torch

    _torchvision = torch.library.Library("torchvision", "DEF")
    _torchvision.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _torchvision.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    if not torch.cuda.is_available():
        _cudart = types.SimpleNamespace(cudaHostRegister=lambda *_: 0)
        torch.cuda.cudart = lambda: _cudart
