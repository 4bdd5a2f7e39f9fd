"""Networks and collators of Hugging Face are used as they are, and train as in a plain loop."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from compss_train import Counted, DistributedTrainer, Samples
from compss_train.engines.calls import intra_op_threads
from tests.helpers.models import assert_same_bits
from tests.helpers.notes import Notes
from tests.helpers.plain_loop import state_arrays
from tests.helpers.tolerances import loss_error

transformers = pytest.importorskip("transformers")
datasets = pytest.importorskip("datasets")
tokenizers = pytest.importorskip("tokenizers")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

SGD = {"optimizer": "sgd", "lr": 0.1}
STILL = {"shuffle": None, "shuffle_block_data": False, "progress": False}
TEXTS = [[2, 3, 4, 3, 2][: 2 + number % 4] for number in range(40)]
TOKENS = datasets.Dataset.from_dict(
    {"input_ids": TEXTS, "attention_mask": [[1] * len(text) for text in TEXTS]}
)
LABELLED = TOKENS.add_column("labels", [number % 2 for number in range(40)])


def tokenizer():
    vocabulary = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "a", "b", "c"])}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]"
    )


LANGUAGE = transformers.DataCollatorForLanguageModeling(tokenizer(), mlm=False)
PADDING = transformers.DataCollatorWithPadding(tokenizer())


def next_token_loss(output, target):
    return functional.cross_entropy(output.flatten(0, 1), target.flatten(), ignore_index=-100)


class Tokens(nn.Module):
    """Has logits for each token, and with labels a loss."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(5, 8)
        self.last = nn.Linear(8, 5)

    def forward(self, input_ids, attention_mask=None):
        assert input_ids.shape[1] > 1
        return self.last(self.embedding(input_ids))


class OwnLoss(Tokens):
    def forward(self, input_ids, attention_mask=None, labels=None):
        logits = super().forward(input_ids)
        if labels is None:
            return {"logits": logits}
        return {"loss": next_token_loss(logits, labels), "logits": logits}


class Classes(Tokens):
    def forward(self, input_ids, attention_mask=None, labels=None):
        return super().forward(input_ids).mean(dim=1)


def trainer_of(net, loss=None, **options):
    trainer = DistributedTrainer(1, engine="serial", seed=0, threads=1)
    trainer.build(net, SGD, loss, **options)
    return trainer


def plain(net, collate, data, loss):
    """The parameters after an epoch of a plain loop, as Transformers' Trainer takes batches."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(data.with_format("torch"), 8, collate_fn=collate)
    with intra_op_threads(1):
        for batch in loader:
            inputs = dict(batch)
            labels = inputs.pop("labels")
            optimizer.zero_grad()
            loss(net(**inputs), labels).backward()
            optimizer.step()
    return state_arrays(net)


def wrapped(samples):
    return LANGUAGE(samples)


def paired(samples):
    batch = dict(LANGUAGE(samples))
    labels = batch.pop("labels")
    return batch, labels


@pytest.mark.parametrize("collate", [LANGUAGE, wrapped, paired], ids=["itself", "wrapped", "pair"])
@pytest.mark.parametrize("loss", [next_token_loss, "output.loss"], ids=["function", "own"])
def test_batches_and_losses_are_those_of_a_plain_loop(collate, loss):
    net = OwnLoss if loss == "output.loss" else Tokens
    trainer = trainer_of(net(), loss, collate=collate)
    trainer.fit(TOKENS, num_epochs=1, batch_size=8, **STILL)
    expected = plain(Tokens(), LANGUAGE, TOKENS, next_token_loss)
    assert_same_bits(trainer.get_parameters(), expected)
    predicted = trainer.predict(TOKENS)
    logits = predicted["logits"] if isinstance(predicted, dict) else predicted
    assert len(logits) == 40


def test_labels_of_the_data_set_are_in_its_samples():
    trainer = trainer_of(Classes(), "cross_entropy", metric="accuracy", collate=PADDING)
    trainer.fit(LABELLED, num_epochs=1, batch_size=8, **STILL)
    assert_same_bits(
        trainer.get_parameters(), plain(Classes(), PADDING, LABELLED, functional.cross_entropy)
    )
    assert trainer.predict(TOKENS).shape == (40, 5)
    assert trainer.predict(LABELLED).shape == (40, 5)
    assert 0 <= trainer.evaluate(LABELLED)["accuracy"] <= 1


def test_a_step_gets_what_the_collator_made():
    seen = Notes()

    def step(model, batch, _):
        seen.append(batch)
        return functional.cross_entropy(model(batch["input_ids"]), batch["labels"])

    trainer = trainer_of(Classes(), training_step=step, collate=PADDING)
    trainer.fit(LABELLED, num_epochs=1, batch_size=8, **STILL)
    assert {type(batch) for batch in seen} == {transformers.BatchEncoding}
    assert set(seen[0]) == {"input_ids", "attention_mask", "labels"}


@pytest.mark.parametrize("causal", [False, True])
def test_the_networks_own_loss_is_a_mean_over_what_it_predicts(causal):
    """Whatever the batches are; perplexity is its exponential."""

    class Shifted(OwnLoss):
        def forward(self, input_ids, attention_mask=None, labels=None):
            logits = Tokens.forward(self, input_ids)
            if labels is None:
                return {"logits": logits}
            return {"loss": next_token_loss(logits[:, :-1], labels[:, 1:]), "logits": logits}

    net = type("TinyForCausalLM", (Shifted,), {})() if causal else OwnLoss()
    trainer = trainer_of(net, "output.loss", collate=LANGUAGE)
    whole = trainer.evaluate(TOKENS, batch_size=40)["loss"]
    for size in (1, 3, 7):
        assert trainer.evaluate(TOKENS, batch_size=size)["loss"] == pytest.approx(
            whole, rel=loss_error(np.float32, 200)
        )
    counted = trainer_of(net, Counted("output.loss", count=lambda labels: 1), collate=LANGUAGE)
    assert counted.evaluate(TOKENS, batch_size=3)["loss"] != pytest.approx(whole, rel=1e-4)


def test_own_losses_that_are_missing_or_cannot_be_weighted(raises):
    class Without(Tokens):
        def forward(self, input_ids, attention_mask=None, labels=None):
            return {"logits": super().forward(input_ids)}

    with raises(TypeError, 'loss="output.loss": the network returns a dict of'):
        trainer_of(Without(), "output.loss", collate=LANGUAGE).fit(
            TOKENS, num_epochs=1, batch_size=8, **STILL
        )
    with raises(ValueError, "the loss output_loss returns one number"):
        trainer_of(OwnLoss(), "output.loss", class_weight=[1, 2], collate=LANGUAGE)


def test_a_function_that_wraps_a_collator_is_told_how_to_get_whole_samples():
    def with_padding(samples):
        return PADDING(samples)

    trainer = trainer_of(Classes(), "cross_entropy", collate=with_padding)
    with pytest.raises(AttributeError) as caught:
        trainer.fit(LABELLED, num_epochs=1, batch_size=8, **STILL)
    assert any("Samples(dataset, collate=...)" in note for note in caught.value.__notes__)
    trainer.build(Classes(), SGD, "cross_entropy")
    samples = Samples(LABELLED.with_format("torch"), collate=with_padding)
    trainer.fit(samples, num_epochs=1, batch_size=8, **STILL)


def bert():
    torch.manual_seed(0)
    return transformers.BertModel(
        transformers.BertConfig(
            vocab_size=5,
            hidden_size=8,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=8,
            max_position_embeddings=8,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )


def bert_that_captures():
    """A network that has been asked for hidden states before the fit."""
    net = bert()
    net(torch.zeros(1, 4, dtype=torch.long), output_hidden_states=True)
    return net


def distilled(teacher):
    """Return a step that learns the hidden states of another network."""

    def step(model, batch, context):
        (x,) = batch
        with torch.no_grad():
            wanted = teacher(x, output_hidden_states=True).hidden_states
        states = model(x, output_hidden_states=True).hidden_states
        assert len(states) == len(wanted) == 3
        return sum(functional.mse_loss(*pair) for pair in zip(states, wanted, strict=True))

    return step


@pytest.mark.parametrize("make", [bert, bert_that_captures])
@pytest.mark.parametrize("engine", ["serial", "local"])
def test_hidden_states_are_captured_in_every_round_and_process(make, engine):
    x = torch.randint(0, 5, (16, 4), generator=torch.Generator().manual_seed(0))
    teacher = bert_that_captures().eval()
    with torch.no_grad():
        teacher.embeddings.word_embeddings.weight += 1
    net = make()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    step = distilled(teacher)
    with intra_op_threads(1):
        for batch in [*x.split(8)] * 2:
            optimizer.zero_grad()
            step(net, (batch,), None).backward()
            optimizer.step()
    trainer = DistributedTrainer(1, engine=engine, seed=0, threads=1)
    trainer.build(make(), SGD, training_step=step)
    trainer.fit(x, num_epochs=2, batch_size=8, **STILL)
    assert_same_bits(trainer.get_parameters(), state_arrays(net))
