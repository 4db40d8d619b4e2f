"""Classes of transformers that needed something of their own to be traced."""

import pytest

from benchmarks import coverage


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
    assert coverage.one(model_type, "cpu") == ""


def test_the_depth_is_cut_in_every_list_that_has_an_entry_a_layer():
    values = {"num_hidden_layers": 4, "layer_types": ["a", "b", "a", "b"], "width": 8, "sizes": [1, 2]}
    assert coverage.cut(values) == {"num_hidden_layers": 2, "layer_types": ["a", "b"]}


def test_a_class_that_reads_its_values_says_which_operator_does():
    assert "aten._local_scalar_dense" in coverage.one("jetmoe", "cpu")
