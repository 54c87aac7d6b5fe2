"""Architectures, losses, and what a user names as `module:function`."""

from tacit.models.architectures import MODELS, build_model, failures, input_dtype, resnet18

__all__ = ["MODELS", "build_model", "failures", "input_dtype", "resnet18"]
