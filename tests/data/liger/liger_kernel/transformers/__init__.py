"""Stands in for liger-kernel, whose own kernels need Triton and a GPU: patches as it does, with plain functions."""

from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN


def _apply_liger_kernel_to_instance(model):
    MODEL_TYPE_TO_APPLY_LIGER_FN[model.config.model_type](model)
