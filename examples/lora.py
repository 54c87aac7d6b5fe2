"""Train LoRA adapters on a Hugging Face model: three nodes with texts of their own.

    pip install '.[huggingface]'
    python examples/lora.py

Only the adapters and the classifier are trained, noised and sent; all other weights are frozen and
must be public. Here the model starts from random weights, so that nothing is downloaded: in its
place, `BertForSequenceClassification.from_pretrained(NAME, attention_probs_dropout_prob=0.0,
attn_implementation="eager")` is a model that was trained on public texts.
"""

from __future__ import annotations

import math
import sys

import torch
from torch import Tensor, nn

try:
    from peft import LoraConfig, get_peft_model
    from transformers import BertConfig, BertForSequenceClassification
except ImportError as missing:
    sys.exit(f"{missing}: run pip install '.[huggingface]' in a clone of the repository")

import tacit

PAD, WORDS, LENGTH = 0, 40, 8


class Texts(nn.Module):
    """Takes ids alone, as tacit hands them over, and finds out itself where a text ends."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> object:
        """What the model returns for ids `[records, words]`, padded with `PAD`."""
        # Four axes, so that it is used as it is: of two, the library asks whether any text of the
        # batch is padded, and what one text holds would decide for all.
        mask = torch.where(ids != PAD, 0.0, -1e9)[:, None, None, :]
        return self.model(input_ids=ids, attention_mask=mask.expand(-1, 1, ids.shape[1], -1))


def adapted() -> nn.Module:
    """A small BERT with adapters in its attention; everything else but the classifier is frozen."""
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=LENGTH,
        pad_token_id=PAD,
        initializer_range=0.2,  # random weights as they come would tell texts apart too little
        attention_probs_dropout_prob=0.0,  # it is no module, so that `tacit.fix` cannot replace it
        attn_implementation="eager",  # type: ignore[call-arg]
    )
    lora = LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["query", "value"])
    return Texts(get_peft_model(BertForSequenceClassification(config), lora))


def texts(count: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """Made-up texts of different lengths of two classes, which favour other halves of the words."""
    classes = torch.randint(0, 2, (count,), generator=draws)
    half, share = WORDS // 2, torch.rand(count, LENGTH, generator=draws)
    later = (share < 0.85).long() == classes.unsqueeze(1)
    ids = torch.randint(1, half, (count, LENGTH), generator=draws) + half * later
    lengths = torch.randint(4, LENGTH + 1, (count, 1), generator=draws)
    return torch.where(torch.arange(LENGTH) < lengths, ids, PAD), classes


def main() -> None:
    """Train, and say what was trained, how well it does, and what it cost."""
    torch.manual_seed(0)
    draws = torch.Generator().manual_seed(1)
    model = tacit.fix(adapted())  # dropout gets masks that are each record's own
    test = texts(400, draws)

    result = tacit.train(
        {
            "topology": {"graph": "complete"},
            "algorithm": {"name": "dp2-sgd", "learning_rate": 2.0, "clip": 1.0},
            "privacy": {"epsilon": 8.0, "delta": 1e-4},
            "train": {"steps": 25, "batch": 120},
        },
        model=model,
        nodes=[texts(600, draws) for _ in range(3)],
        test=test,
        output="logits",  # the model returns more than that
    )

    every = sum(parameter.numel() for parameter in model.parameters())
    print(f"trained and sent: {result.parameters.shape[1]:,} of {every:,} parameters")
    assert result.test_accuracy is not None
    print(f"test accuracy, consensus model: {result.test_accuracy['consensus']:.1%}")
    spent = [epsilon for epsilon in result.epsilon if epsilon is not None]
    print(f"certified epsilon, most: {math.ceil(100 * max(spent)) / 100:.2f} of 8")
    trained = result.model("consensus")  # a `Texts` with the adapters that were trained
    with torch.no_grad():
        print(f"first test text: class {int(trained(test[0][:1]).logits.argmax())}")


if __name__ == "__main__":
    main()
