"""The registry, where liger-kernel has it."""

try:
    from liger_kernel.ops.norm import Norm
except ImportError:  # without Triton
    Norm = None


def apply_liger_kernel_to_llama(model):
    from transformers.models.llama import modeling_llama

    rotate = modeling_llama.apply_rotary_pos_emb

    def counted(*args, **kwargs):
        counted.calls += 1
        return rotate(*args, **kwargs)

    counted.calls = 0
    modeling_llama.apply_rotary_pos_emb = counted
    if model.device.type == "cpu":
        return
    for part in model.modules():
        if isinstance(part, modeling_llama.LlamaRMSNorm):
            part.forward = lambda X, norm=part: Norm.apply(X, norm.weight)


MODEL_TYPE_TO_APPLY_LIGER_FN = {
    "llama": apply_liger_kernel_to_llama,
}
