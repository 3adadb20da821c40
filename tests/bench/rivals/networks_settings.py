"""What all libraries train with."""

# A rate so small that the second step is as well defined as the first.
LEARNING_RATE, MOMENTUM = 1e-5, 0.9
