"""Classes of transformers that needed something of their own to be traced."""

import os
import signal
import time

import pytest

from benchmarks import accuracy_by_class, coverage
from benchmarks.forked import each_alone


@pytest.mark.parametrize(
    "model_type",
    [
        "big_bird",  # turns its attention to the full one at its first step
        "glm",  # several tokens that end a text
        "llama4",  # its language model takes a part of its configuration
        "xlnet",  # says that it has -1 positions
    ],
)
def test_a_class_that_was_mended_traces(model_type):
    assert coverage.one(model_type, "cpu") == coverage.TRACED


def test_the_depth_is_cut_in_every_list_that_has_an_entry_a_layer():
    values = {"num_hidden_layers": 4, "layer_types": ["a", "b", "a", "b"], "width": 8, "sizes": [1, 2]}
    assert coverage.cut(values) == {"num_hidden_layers": 2, "layer_types": ["a", "b"]}


def test_a_class_that_reads_its_values_says_which_operator_does():
    assert "aten._local_scalar_dense" in coverage.one("jetmoe", "cpu")


def test_what_dies_or_takes_too_long_says_so_and_ends_no_other():
    def answer(item):
        if item == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if item == "sleeps":
            time.sleep(60)
        return item.upper()

    answers = each_alone(["dies", "sleeps", "one", "two"], answer, patience=2.0, at_once=2)
    assert {answer.item: answer.text for answer in answers} == {
        "dies": "its process died", "sleeps": "took more than 2 s", "one": "ONE", "two": "TWO",
    }  # fmt: skip


def test_a_narrow_model_keeps_what_is_no_width():
    values = {"hidden_size": 768, "num_attention_heads": 12, "vocab_size": 50000, "eos_token_id": 40000,
              "use_cache": True, "num_experts": 128, "num_hidden_layers": 12, "head_dim": 64}  # fmt: skip
    assert accuracy_by_class.narrow(values, 4) == {
        "hidden_size": 192, "num_attention_heads": 3, "vocab_size": 2000, "eos_token_id": 3, "num_experts": 16,
    }  # fmt: skip


def test_a_class_is_as_far_off_as_its_worst_training():
    said = '{"predicted": {"1": 99, "3": 300}, "measured": {"1": 100, "3": 299}}'
    assert accuracy_by_class.row_of("bert|BertForMaskedLM", said, 1.0)["error"] == pytest.approx(-0.01)
    assert "error" not in accuracy_by_class.row_of("bert|BertForMaskedLM", "cannot be traced: why", 1.0)
