"""What a model's configuration says of its shape, by the names that its libraries have for it."""

from __future__ import annotations

from typing import Any


def width(config: Any) -> int:
    """Return the width of a configured model's hidden states; 0 where none is told."""
    return _first(_text_config(config), "hidden_size", "d_model", "n_embd")


def layers_of(config: Any) -> int:
    """Return the layers that one sample passes: of encoder and decoder together where a model has both."""
    config = _text_config(config)
    layers = _first(config, "num_hidden_layers", "n_layer", "num_layers")
    if getattr(config, "is_encoder_decoder", False):
        decoder = _first(config, "num_decoder_layers", "decoder_layers")
        encoder = _first(config, "encoder_layers", "num_layers", "num_hidden_layers")
        return encoder + (decoder or layers)
    return layers


def experts_of(config: Any) -> tuple[int, int]:
    """Return how many experts a token takes, and of how many: (chosen, available); zeros where there are none."""
    config = _text_config(config)
    chosen = _first(config, "num_experts_per_tok", "num_experts_per_token", "moe_topk")
    available = _first(config, "num_local_experts", "num_experts", "n_routed_experts")
    return (chosen, available) if chosen and available else (0, 0)


def _text_config(config: Any) -> Any:
    """Return the part of a configuration that describes the transformer; None where there is none."""
    get = getattr(config, "get_text_config", None)
    return get() if callable(get) else config


def _first(config: Any, *names: str) -> int:
    """Return the first of these settings that is a number; 0 where none is."""
    for name in names:
        value = getattr(config, name, None)
        if isinstance(value, int):
            return value
    return 0
