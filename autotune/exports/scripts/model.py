"""The model, built as it was measured: fp32 parameters and fresh weights, from config.json."""

import functools
import json
import types
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
    return keep_only_the_loss(model_class(config).train())


def keep_only_the_loss(model: transformers.PreTrainedModel) -> transformers.PreTrainedModel:
    """Make the model return nothing but its loss while it trains.

    Otherwise accelerate turns all outputs to fp32 on the way out, and the copy of the logits costs
    micro-batch x sequence x vocabulary x 4 bytes that were never measured.
    """

    @functools.wraps(type(model).forward)
    def loss_only(self, *args, **kwargs):
        output = type(self).forward(self, *args, **kwargs)
        return {"loss": output["loss"]} if self.training else output

    model.forward = types.MethodType(loss_only, model)
    return model
