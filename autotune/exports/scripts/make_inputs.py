"""Make what the configuration names, as examples: the folder `model`, with fresh weights, and the folder `data`.

Started by launch.sh where there is no `model` yet. Put your own in their place, or name them in the configuration.
"""

import json

from data import ExampleData
from model import FOLDER, SETTINGS, build_model
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

SPECIAL = ("<unk>", "<pad>", "<eos>")


def main() -> None:
    """Write both folders; `model` comes last, so that what was interrupted is made again."""
    model = build_model()
    examples = ExampleData(model.config, SETTINGS["count"])
    (FOLDER / "data").mkdir(exist_ok=True)
    with (FOLDER / "data" / "train.jsonl").open("w") as file:
        for index in range(len(examples)):
            tokens = examples[index]["input_ids"].tolist()
            # One fewer: behind a text each of these libraries puts a token for its end.
            words = " ".join(str(token) for token in tokens[:-1])
            row = {"input_ids": tokens} if SETTINGS["rows"] == "tokens" else {"text": words}
            file.write(json.dumps(row) + "\n")
    tokenizer(model.config.get_text_config().vocab_size).save_pretrained(FOLDER / "model")
    model.save_pretrained(FOLDER / "model")


def tokenizer(size: int) -> PreTrainedTokenizerFast:
    """Return a tokenizer of a vocabulary's size: the words are the numbers of its tokens, but for the first three."""
    # Special tokens are found inside of words too, so that none may be a number: 255 would be 2 and 55.
    words = {word: token for token, word in enumerate([*SPECIAL, *map(str, range(len(SPECIAL), size))])}
    plain = Tokenizer(models.WordLevel(words, unk_token=SPECIAL[0]))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    unknown, padding, end = SPECIAL
    return PreTrainedTokenizerFast(
        tokenizer_object=plain, unk_token=unknown, pad_token=padding, eos_token=end
    )


if __name__ == "__main__":
    main()
