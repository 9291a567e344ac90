"""Train a small CNN on the images that come with slimgrad. One line is not plain PyTorch: it is marked."""

import torch
from torch import nn

import slimgrad
from slimgrad.lab.data import fashion_mnist


def block(inputs: int, outputs: int) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2))


def main(steps: int = 100, batch: int = 64) -> float:
    torch.manual_seed(0)
    train, test = fashion_mnist("train"), fashion_mnist("test")
    model = nn.Sequential(block(1, 16), block(16, 32), nn.Flatten(), nn.Linear(32 * 7 * 7, 10))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    slim = slimgrad.attach(model, criterion)  # <- the one changed line

    for step in range(steps):
        picked = torch.randint(len(train.y), (batch,))
        loss = criterion(model(train.x[picked]), train.y[picked])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step:3d}   loss {loss.item():.3f}")

    with torch.no_grad():
        accuracy = (model.eval()(test.x).argmax(1) == test.y).float().mean().item()
    print(f"test accuracy {accuracy:.1%}")
    print(slim.report())
    return accuracy


if __name__ == "__main__":
    main()
