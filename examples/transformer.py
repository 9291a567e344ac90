"""Train a small transformer to copy a text backwards. One line is not plain PyTorch: it is marked."""

import torch
from torch import nn

import slimgrad


class Reverser(nn.Module):
    def __init__(self, vocabulary: int, length: int, width: int = 64):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.randn(length, width) * 0.5)
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.tokens(text) + self.places))


def main(steps: int = 60, vocabulary: int = 12, length: int = 16) -> float:
    torch.manual_seed(0)
    model = Reverser(vocabulary, length)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    slim = slimgrad.attach(model, criterion)  # <- the one changed line

    accuracy = 0.0
    for step in range(steps):
        text = torch.randint(vocabulary, (64, length))
        logits = model(text)
        loss = criterion(logits.flatten(0, 1), text.flip(1).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        accuracy = (logits.argmax(-1) == text.flip(1)).float().mean().item()
        if step % 10 == 0:
            print(f"step {step:3d}   loss {loss.item():.3f}   right {accuracy:.1%}")
    print(f"right at the end: {accuracy:.1%}")
    print(slim.report())
    return accuracy


if __name__ == "__main__":
    main()
