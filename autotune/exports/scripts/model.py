"""The model, built as it was measured: fresh weights, in fp32 unless all was bf16, from config.json."""

import json
from pathlib import Path

import transformers

FOLDER = Path(__file__).parent
SETTINGS = json.loads((FOLDER / "settings.json").read_text())


def build_model() -> transformers.PreTrainedModel:
    """Return the model in training mode, on the CPU."""
    attention = {"attn_implementation": SETTINGS["attention"]} if SETTINGS["attention"] else {}
    config = transformers.AutoConfig.from_pretrained(FOLDER, **attention)
    for part in (config, *(getattr(config, name, None) for name in config.sub_configs)):
        if getattr(part, "use_cache", None) is not None:
            part.use_cache = False
    # To go on from published weights: model_class.from_pretrained("owner/name", dtype=torch.float32, **attention)
    model_class = getattr(transformers, SETTINGS["model_class"])
    model = model_class(config).train()
    if SETTINGS["precision"] == "bf16-pure":  # parameters alone: buffers stay as the model made them
        for parameter in model.parameters():
            parameter.data = parameter.data.bfloat16()
    return model
