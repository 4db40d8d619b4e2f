"""Ways to name a model: presets, configurations, the hub, or a function of the user's."""
