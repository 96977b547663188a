"""Algorithm 1 in plain PyTorch, as a user of the method would write it down: the peer of our own.

Scores by autograd, a two-layer network, T' steps of SGD with momentum, the divergence by
Hutchinson's estimator with one probe (a second backward pass), H = I and a constant step.
"""

import time

import torch


def algorithm_1(
    signed,
    start,
    num_steps: int,
    width: int = 32,
    inner_steps: int = 5,
    step_size: float = 1e-3,
    learning_rate: float = 1e-3,
) -> tuple[torch.Tensor, float]:
    """Move the particles under logistic regression, N(0, 1) prior; and the seconds it took.

    ``signed`` are the rows of features times their labels of -1 and 1.
    """
    torch.manual_seed(0)
    particles = torch.tensor(start)
    rows = torch.tensor(signed, dtype=particles.dtype)
    dim = particles.shape[1]
    net = torch.nn.Sequential(
        torch.nn.Linear(dim, width), torch.nn.Sigmoid(), torch.nn.Linear(width, dim)
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=learning_rate, momentum=0.9)
    began = time.perf_counter()
    for _ in range(num_steps):
        x = particles.clone().requires_grad_(True)
        log_density = torch.nn.functional.logsigmoid(x @ rows.T).sum() - 0.5 * (x**2).sum()
        scores = torch.autograd.grad(log_density, x)[0]
        for _ in range(inner_steps):
            values = net(x)
            probe = torch.randn_like(x)
            (slopes,) = torch.autograd.grad((values * probe).sum(), x, create_graph=True)
            divergence = (slopes * probe).sum(dim=1)
            half = 0.5 * (values**2).sum(dim=1)
            loss = (half - (values * scores).sum(dim=1) - divergence).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            particles = particles + step_size * net(particles)
    return particles, time.perf_counter() - began
