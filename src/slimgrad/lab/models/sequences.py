"""Models of sequences: a GPT, a ViT, and an LSTM classifier. GPT and ViT share one pre-norm transformer block."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    """Self-attention with one fused projection for q, k and v."""

    def __init__(self, width: int, heads: int, dropout: float, causal: bool):
        super().__init__()
        self.heads, self.dropout, self.causal = heads, dropout, causal
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        p = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)).

    `dropout` acts on the two branches; `attention_dropout` inside attention, where the CPU then has no fused kernel.
    """

    def __init__(self, width: int, heads: int, dropout: float, attention_dropout: float, causal: bool):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, attention_dropout, causal)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.drop1, self.drop2 = nn.Dropout(dropout), nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.drop1(self.attention(self.norm1(x)))
        return x + self.drop2(self.mlp(self.norm2(x)))


def normal_init(model: nn.Module) -> None:
    """Initialise linear layers and embeddings as GPT-2 does."""
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)


class Gpt(nn.Module):
    """A decoder of GPT-2's shape; `tied` shares the embedding with the output layer."""

    def __init__(
        self,
        classes: int = 8192,
        width: int = 768,
        depth: int = 6,
        heads: int = 12,
        context: int = 1024,
        dropout: float = 0.1,
        attention_dropout: float = 0.0,
        tied: bool = False,
    ):
        super().__init__()
        self.tokens = nn.Embedding(classes, width)
        self.places = nn.Embedding(context, width)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout, attention_dropout, True) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes, bias=False)
        normal_init(self)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.drop(self.tokens(tokens) + self.places(places))
        return self.head(self.norm(self.blocks(x)))

    def segments(self) -> list[nn.Module]:
        return [*self.blocks]


class Vit(nn.Module):
    """A vision transformer with a class token; `size` is the side of the image it is built for."""

    def __init__(
        self,
        classes: int = 1000,
        size: int = 224,
        patch: int = 16,
        width: int = 384,
        depth: int = 12,
        heads: int = 6,
        dropout: float = 0.0,
        in_channels: int = 3,
    ):
        super().__init__()
        self.patches = nn.Conv2d(in_channels, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout, 0.0, False) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)
        normal_init(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.places
        return self.head(self.norm(self.blocks(x))[:, 0])

    def segments(self) -> list[nn.Module]:
        return [*self.blocks]


class LstmClassifier(nn.Module):
    """An LSTM over a sequence of feature vectors (an image row by row), classified by its last state."""

    def __init__(self, classes: int = 10, features: int = 28, width: int = 128, depth: int = 2, dropout: float = 0.1):
        super().__init__()
        self.lstm = nn.LSTM(features, width, depth, batch_first=True, dropout=dropout)
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(x)
        return self.head(states[:, -1])

    def segments(self) -> list[nn.Module]:
        return [self.lstm]
