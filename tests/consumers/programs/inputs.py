"""Writes what command lines of packages name: a model, tiny and with fresh weights, and rows."""

import json
import pathlib
import sys

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SIZE, LENGTH, ROWS = 1024, 256, 64
folder = pathlib.Path(sys.argv[1])
plain = Tokenizer(models.WordLevel({str(token): token for token in range(SIZE)}, unk_token="0"))
plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="0", pad_token="1", eos_token="2")
tokenizer.save_pretrained(folder / "model")
config = LlamaConfig(
    vocab_size=SIZE, hidden_size=16, intermediate_size=16384, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=2, max_position_embeddings=LENGTH, eos_token_id=2, pad_token_id=1, bos_token_id=None,
)  # fmt: skip
LlamaForCausalLM(config).save_pretrained(folder / "model")
(folder / "data").mkdir()
rows = [[3 + (row + place) % (SIZE - 3) for place in range(LENGTH)] for row in range(ROWS)]
tokens = "".join(json.dumps({"input_ids": row}) + "\n" for row in rows)
(folder / "data" / "tokens.jsonl").write_text(tokens)
texts = "".join(json.dumps({"text": " ".join(map(str, row))}) + "\n" for row in rows)
(folder / "text").mkdir()
(folder / "text" / "text.jsonl").write_text(texts)
about = {"text": {"file_name": "text.jsonl", "columns": {"prompt": "text"}}}  # as LLaMA-Factory wants it
(folder / "text" / "dataset_info.json").write_text(json.dumps(about))
