"""Make what litgpt.yaml names, as examples: the folder `checkpoint`, with fresh weights, and the folder `data`.

Started by launch.sh where there is no `checkpoint` yet. Put your own in their place, or name them in litgpt.yaml; what
`litgpt download` or `litgpt convert_to_litgpt` made is such a checkpoint.
"""

import json

import torch
import transformers
from data import ExampleData
from litgpt.config import Config
from litgpt.model import GPT
from litgpt.utils import save_config
from make_inputs import tokenizer
from model import FOLDER, SETTINGS

MODEL = json.loads((FOLDER / "config.json").read_text())
LLAMA3 = {
    "factor": "factor",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "original_max_position_embeddings": "original_max_seq_len",
}
"""How Llama 3 stretches positions, in transformers' words and in LitGPT's."""


def main() -> None:
    """Write both folders; the weights come last, so that what was interrupted is made again."""
    examples = ExampleData(transformers.AutoConfig.from_pretrained(FOLDER), SETTINGS["count"])
    rows = [row(examples[index]["input_ids"].tolist()) for index in range(len(examples))]
    (FOLDER / "data").mkdir(exist_ok=True)
    # LitGPT evaluates before its first step, whatever it is told: one row makes that the least.
    for name, these in (("train", rows), ("val", rows[:1])):
        text = "".join(json.dumps(one) + "\n" for one in these)
        (FOLDER / "data" / f"{name}.jsonl").write_text(text)
    checkpoint, unfinished = FOLDER / "checkpoint", FOLDER / "checkpoint.part"
    tokenizer(MODEL["vocab_size"]).save_pretrained(unfinished)
    save_config(sizes(), unfinished)
    torch.save(GPT(sizes()).state_dict(), unfinished / "lit_model.pth")
    unfinished.rename(checkpoint)


def row(tokens: list[int]) -> dict[str, str]:
    """Return a sample of as many tokens, which are the words; LitGPT adds one for its end, and cuts it off again."""
    words = [str(token) for token in tokens]
    return {"instruction": words[0], "output": " ".join(words[1:])}


def sizes() -> Config:
    """Return LitGPT's Llama of the sizes in config.json."""
    heads = MODEL["num_attention_heads"]
    position = MODEL.get("rope_parameters") or MODEL.get("rope_scaling") or {}
    stretched = {ours: position[theirs] for theirs, ours in LLAMA3.items() if theirs in position}
    return Config(
        name="tuned",
        block_size=max(SETTINGS["seq_len"], MODEL.get("max_position_embeddings", 0)),
        n_layer=MODEL["num_hidden_layers"],
        n_embd=MODEL["hidden_size"],
        vocab_size=MODEL["vocab_size"],
        padded_vocab_size=MODEL["vocab_size"],
        norm_class_name="RMSNorm",
        norm_eps=MODEL.get("rms_norm_eps", 1e-6),
        parallel_residual=False,
        n_head=heads,
        head_size=MODEL.get("head_dim") or MODEL["hidden_size"] // heads,
        n_query_groups=MODEL.get("num_key_value_heads") or heads,
        rope_base=int(MODEL.get("rope_theta") or position.get("rope_theta", 10000)),
        rotary_percentage=1.0,
        rope_adjustments=stretched or None,
        mlp_class_name="LLaMAMLP",
        intermediate_size=MODEL["intermediate_size"],
        bias=False,
    )


if __name__ == "__main__":
    main()
