import random

import torch
from torch.utils.data import DataLoader, Dataset

from real_questions.question import question


class BertTokenizer:
    """Makes pieces of words."""

    def __init__(self, words):
        pieces = {word[start:end] for word in words for start in range(6) for end in range(9)}
        self.vocab = {piece: number for number, piece in enumerate(sorted(pieces | set("abc")))}
        self.pieces = list(self.vocab)

    def tokenize(self, text):
        tokens = []
        for word in text.split():
            start = 0
            while start < len(word):
                end = min(len(word), start + 8)
                while end > start + 1 and word[start:end] not in self.vocab:
                    end -= 1
                tokens.append(word[start:end])
                start = end
        return tokens

    def convert_tokens_to_ids(self, tokens):
        return [self.vocab.get(token, 0) for token in tokens]


class LineByLineDataset(Dataset):
    """Sentences that have been tokenized, with their words."""

    def __init__(self, words, tokenizer, length=128):
        draw = random.Random(1)
        self.lines, self.input_ids = [], []
        for _ in range(300):
            line = " ".join(draw.choices(words, k=80))
            ids = tokenizer.convert_tokens_to_ids(tokenizer.tokenize(line))[:length]
            self.lines.append(line)
            self.input_ids.append(torch.tensor(ids + [0] * (length - len(ids))))

    def __len__(self):
        return 500_000

    def __getitem__(self, index):
        number = index % len(self.lines)
        return self.input_ids[number], self.lines[number]


class MaskedLanguageModeling:
    """Hides words, all pieces of one together."""

    def __init__(self, tokenizer, probability=0.15):
        self.tokenizer, self.probability = tokenizer, probability

    def whole_word_tails_mask(self, line, length):
        tails = []
        for word in line.split():
            pieces = self.tokenizer.tokenize(word)
            self.tokenizer.convert_tokens_to_ids(pieces)
            tails.extend([False] + [True] * (len(pieces) - 1))
        return torch.tensor((tails + [False] * length)[:length])

    def __call__(self, examples):
        inputs = torch.stack([ids for ids, _ in examples])
        length = inputs.shape[1]
        tails = torch.stack([self.whole_word_tails_mask(line, length) for _, line in examples])
        heads = torch.rand(inputs.shape) < self.probability
        word = (~tails).cumsum(dim=1) - (~tails[:, :1]).long()
        masked = heads.gather(1, word.clamp(min=0))
        labels = inputs.masked_fill(~masked, -100)
        return inputs.masked_fill(masked, 1), labels


@question(
    source="transformers-lightning #37, #38",
    report="words are tokenized again to hide them whole; batched",
    step_s=0.006,
    causes=("collate",),
    place=r"MaskedLanguageModeling|[Cc]ollat|whole_word_tails_mask|tokenize",
    lever=r"at once|whole|vector|NumPy|\bonce\b|beforehand|"
    r"in advance|\bcache|[Kk]eep|fast tokenizer",
)
def words_to_hide(_folder):
    """Tokenize each word once more where batches are made."""
    draw = random.Random(0)
    words = ["".join(draw.choices("etaoinshrdlu", k=draw.randint(4, 14))) for _ in range(2000)]
    tokenizer = BertTokenizer(words[:600])
    dataset = LineByLineDataset(words, tokenizer)
    collate = MaskedLanguageModeling(tokenizer)
    return DataLoader(dataset, batch_size=32, shuffle=True, num_workers=2, collate_fn=collate)
