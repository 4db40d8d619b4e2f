"""The models of published runs compute what their publishers' did."""

import csv

import pytest
import torch

from benchmarks import accuracy_published as published
from benchmarks import published_litgpt as litgpt
from benchmarks.published_models import _SoftmaxOfTorch110

TRAINED = {
    ("phi-1.5", "lora"): 1_572_864,
    ("StableLM-Alpha-3B", "lora"): 2_097_152,
    ("StableLM-Alpha-3B", "adapter_v2"): 2_125_248,
    ("Llama-2-7B", "lora"): 4_194_304,
    ("Llama-2-7B", "adapter_v2"): 4_279_744,
    ("Llama-2-13B", "lora"): 6_553_600,
}
"""As LitGPT's tables give them."""


@pytest.mark.parametrize(("name", "tuning"), TRAINED)
def test_litgpts_models_train_as_many_parameters_as_were_published(name, tuning):
    with torch.device("meta"):
        model = litgpt.LitGpt(litgpt.MODELS[name], tuning)
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    assert trained == TRAINED[name, tuning]


@pytest.mark.parametrize("tuning", ["lora", "adapter_v2"])
@pytest.mark.parametrize("llama", [True, False])
def test_litgpts_model_learns_through_its_adapters(llama, tuning):
    sizes = litgpt.Sizes(3, 32, 4, 64, 48, rotary=0.5, llama=llama)
    torch.manual_seed(0)
    model = litgpt.LitGpt(sizes, tuning)
    tokens = torch.randint(64, (2, 140))  # more than one chunk of the output layer
    model(tokens, tokens).backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad, name


def test_the_softmax_of_old_keeps_its_input_and_has_the_gradient_of_todays():
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        y = _SoftmaxOfTorch110.apply(x * 2)
    assert len(kept) == 2
    weights = torch.arange(15.0, dtype=torch.float64).view(3, 5)
    (ours,) = torch.autograd.grad((y * weights).sum(), x)
    (today,) = torch.autograd.grad(((x * 2).softmax(-1) * weights).sum(), x)
    torch.testing.assert_close(ours, today)


def test_every_row_with_a_peak_is_expressed_or_says_what_is_missing():
    rows = {row["id"]: row for row in csv.DictReader(published.DATA.open(encoding="utf-8"))}
    peaks = {number for number, row in rows.items() if row["peak_mem_gib"]}
    assert set(published.EXPRESSED) <= peaks
    reasons = {number: published.missing(rows[number]) for number in peaks - set(published.EXPRESSED)}
    assert reasons["301"].startswith("FSDP1")
    assert reasons["326"].startswith("micro-batch")
    assert reasons["218"] == reasons["332"] == "8-bit floats"
    assert all(reasons.values())


def test_the_closed_form_refuses_none_of_the_runs_that_fitted():
    fitted = 0
    for row in csv.DictReader(published.DATA.open(encoding="utf-8")):
        predicted = None if row["peak_mem_gib"] else published.closed_form(row)
        if predicted is not None:
            fitted += 1
            assert predicted / 2**30 <= published.GPU_GIB[row["gpu"]], row["id"]
    assert fitted == 109
