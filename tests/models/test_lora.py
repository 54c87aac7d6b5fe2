"""LoRA adapters on models of Hugging Face: what is trained, what stays, and what is kept of it."""

import copy

import pytest
import torch
from torch import nn

import tacit

pytestmark = pytest.mark.slow  # the two packages take seconds to load

PAD, WORDS, LENGTH = 0, 30, 6


def loaded(name):
    """One of the two packages, loaded by the first test: every other file is collected without."""
    return pytest.importorskip(name, reason=f"{name} is not installed (the extra huggingface)")


class Texts(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids):
        mask = torch.where(ids != PAD, 0.0, -1e9)[:, None, None, :]
        return self.model(input_ids=ids, attention_mask=mask.expand(-1, 1, ids.shape[1], -1))


class CausalTexts(Texts):
    def forward(self, ids):
        return self.model(input_ids=ids, attention_mask=(ids != PAD).long())


def bert():
    transformers = loaded("transformers")
    config = transformers.BertConfig(
        vocab_size=WORDS, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=24, max_position_embeddings=LENGTH, pad_token_id=PAD,
        attention_probs_dropout_prob=0.0, attn_implementation="eager",
    )  # fmt: skip
    return adapted(transformers.BertForSequenceClassification(config), "query", "value")


def gpt2():
    transformers = loaded("transformers")
    config = transformers.GPT2Config(
        vocab_size=WORDS, n_embd=16, n_layer=2, n_head=2, n_positions=LENGTH, num_labels=2,
        pad_token_id=PAD, bos_token_id=1, eos_token_id=1, attn_pdrop=0.0,
        attn_implementation="eager",
    )  # fmt: skip
    return adapted(
        transformers.GPT2ForSequenceClassification(config), "c_attn", wrapper=CausalTexts
    )


def adapted(model, *targets, wrapper=Texts):
    peft = loaded("peft")
    lora = peft.LoraConfig(task_type="SEQ_CLS", r=2, lora_dropout=0.1, target_modules=[*targets])
    return wrapper(peft.get_peft_model(model, lora))


def texts(count, seed):
    draws = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, WORDS, (count, LENGTH), generator=draws)
    lengths = torch.randint(2, LENGTH + 1, (count, 1), generator=draws)
    return torch.where(torch.arange(LENGTH) < lengths, ids, PAD), ids[:, 0] % 2


def train(model):
    config = {
        "topology": {"graph": "complete"},
        "algorithm": {"name": "dp2-sgd", "learning_rate": 0.5, "clip": 1.0},
        "privacy": {"epsilon": 8.0, "delta": 1e-3, "noise_seed": 1},
        "train": {"steps": 2, "batch": 6},
    }
    nodes = [texts(12, seed) for seed in range(3)]
    return tacit.train(config, model=model, nodes=nodes, test=texts(9, 7), output="logits")


@pytest.mark.parametrize("make", [bert, gpt2])
def test_adapters_are_trained_and_all_else_is_frozen(make):
    torch.manual_seed(0)
    model = tacit.fix(make())
    before = copy.deepcopy(model.state_dict())
    result = train(model)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    engine = result.job.model
    assert engine.path == "taps"
    assert {slot.name for slot in engine.layout.slots} == trained
    size = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert result.parameters.shape == (3, size)
    assert size < sum(p.numel() for p in model.parameters()) / 4

    found = result.model(0)
    assert isinstance(found, Texts)
    for name, values in found.state_dict().items():
        assert values.equal(before[name]) == (name not in trained)
    # Weights go into the user's own module, and into one that is loaded anew.
    torch.manual_seed(5)
    own = make()
    own.load_state_dict(found.state_dict())
    ids = texts(5, 3)[0]
    assert own.eval()(ids).logits.equal(found(ids).logits)


def test_frozen_weights_are_kept_once_in_the_dtype_of_the_run():
    torch.manual_seed(0)
    engine = train(tacit.fix(bert())).job.model
    frozen = {name: p for name, p in engine.original.named_parameters() if not p.requires_grad}
    working = dict(engine.engine.module.named_parameters())  # type: ignore[attr-defined]
    evaluated = dict(engine.evaluated.named_parameters())
    for name, values in frozen.items():
        assert values.data_ptr() == working[name].data_ptr() == evaluated[name].data_ptr()


def test_what_follows_the_end_of_a_text_does_not_count():
    torch.manual_seed(0)
    model = bert().eval()
    short = torch.tensor([[4, 9, PAD, PAD, PAD, PAD]])
    torch.testing.assert_close(model(short).logits, model(short[:, :2]).logits)


def test_attention_dropout_that_is_no_module_is_refused_with_the_way_out():
    model = bert()
    for part in model.modules():
        if type(part).__name__ == "BertSelfAttention":
            part.dropout = nn.Dropout(0.1)  # its chance is read, and it is never called
    with pytest.raises(tacit.InputError, match="attention dropout in its configuration to 0"):
        train(tacit.fix(model))
