"""Networks over sequences, as users write them with mlx.nn: one of 1-D convolutions, and one that ends recurrent."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn


class WaveNet1d(nn.Module):
    """Classifies sequences (n, l, channels), such as sensors' records."""

    def __init__(self, channels: int = 6, width: int = 64, num_classes: int = 12, dropout: float = 0.2) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(channels, width, 7, stride=2, padding=3)
        self.bn1 = nn.BatchNorm(width)
        self.pool = nn.MaxPool1d(3, stride=2, padding=1)
        self.conv2 = nn.Conv1d(width, 2 * width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm(2 * width)
        self.conv3 = nn.Conv1d(2 * width, 2 * width, 3, padding=2, dilation=2, bias=False)
        self.bn3 = nn.BatchNorm(2 * width)
        self.average = nn.AvgPool1d(2)
        self.fc1, self.fc2 = nn.Linear(2 * width, width), nn.Linear(width, num_classes)
        self.dropout = nn.Dropout(dropout)

    def __call__(self, x: mx.array) -> mx.array:
        x = self.pool(nn.relu(self.bn1(self.conv1(x))))
        x = nn.relu(self.bn2(self.conv2(x)))
        x = x + nn.relu(self.bn3(self.conv3(x)))
        x = self.average(x).mean(axis=1)
        return self.fc2(self.dropout(nn.relu(self.fc1(x))))


class Reader(nn.Module):
    """Reads a line of text from its image: convolutions, a GRU and an LSTM over the columns, characters by column."""

    def __init__(self, width: int = 32, hidden: int = 128, num_classes: int = 80) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.BatchNorm(width),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.BatchNorm(2 * width),
            nn.ReLU(),
            nn.MaxPool2d((2, 1), stride=(2, 1)),
        )
        self.project = nn.Linear(2 * width, hidden)
        self.gru = nn.GRU(hidden, hidden)
        self.norm = nn.RMSNorm(hidden)
        self.lstm = nn.LSTM(hidden, hidden)
        self.head = nn.Linear(hidden, num_classes)

    def __call__(self, x: mx.array) -> mx.array:
        x = self.features(x).mean(axis=1)
        x = nn.tanh(self.project(x))
        x = self.norm(self.gru(x))
        x, _ = self.lstm(x)
        return self.head(x)
