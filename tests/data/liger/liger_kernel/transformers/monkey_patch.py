"""The registry, where liger-kernel has it."""


def apply_liger_kernel_to_llama(model):
    from transformers.models.llama import modeling_llama

    rotate = modeling_llama.apply_rotary_pos_emb

    def counted(*args, **kwargs):
        counted.calls += 1
        return rotate(*args, **kwargs)

    counted.calls = 0
    modeling_llama.apply_rotary_pos_emb = counted


MODEL_TYPE_TO_APPLY_LIGER_FN = {
    "llama": apply_liger_kernel_to_llama,
}
