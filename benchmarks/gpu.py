"""A training step of the paper's quadratic network on a GPU: where its time goes, and what saves
some.

    python benchmarks/gpu.py             # the paper's size, batch 100, on a GPU
    python benchmarks/gpu.py --tiny      # a tiny network, on any machine: does all of it run?

First the longest kernels of a step. Then every way to take the same step, in turns, so that none
has the quieter moment; all ways compute the same sums, in another order. Milliseconds a step,
medians.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from attnconv.config import PRESETS, TrainConfig, replace
from attnconv.models import AttentionNet, build_model
from attnconv.training.optimizers import build_optimizers

TINY = {"hidden": 16, "mlp": 32, "heads": 4, "layers": 2, "image_size": (16, 16)}
Forward = Callable[[AttentionNet, Tensor], Tensor]


def as_it_is(network: AttentionNet, images: Tensor) -> Tensor:
    """The library's own forward pass."""
    return network(images)


def pixels_first(network: AttentionNet, images: Tensor) -> Tensor:
    """Pixels before images in memory, (N, B, C); project with each head's W^h, then average.

    The averages of all heads are one product, (N x h N) (h N x B D). No P of each image arises in
    the backward pass: the gradient of P is one product, too.
    """
    return _pixels_first(network, images, _by_head)


def pixels_first_one_product(network: AttentionNet, images: Tensor) -> Tensor:
    """The same, but the heads' projections are one product and a copy."""
    return _pixels_first(network, images, _at_once)


def _pixels_first(network: AttentionNet, images: Tensor, project: Callable) -> Tensor:
    x = network.pixels(images)
    height, width = x.shape[1:3]
    x = x.flatten(1, 2).transpose(0, 1).contiguous()  # (N, B, C)
    for block in network.blocks:
        layer = block.attention
        p = layer.probabilities(height, width).flatten(3).flatten(1, 2)  # (h, N, N)
        p = F.dropout(p, layer.dropout, layer.training)
        p = p.transpose(0, 1).flatten(1)  # (N, h N)
        values = layer.value.weight.unflatten(1, (layer.heads, -1))  # (D, h, C)
        v = project(x, values)  # (h N, B D)
        y = (p.to(v.dtype) @ v).view(*x.shape[:2], -1) + layer.value.bias
        x = block.norm1(x + block.dropout(block.output(y)))
        x = block.norm2(x + block.dropout(block.mlp(x)))
    return network.classifier(x.mean(0))


def _by_head(x: Tensor, values: Tensor) -> Tensor:
    """x (N, B, C), values (D, h, C) -> (h N, B D): a product for each head."""
    pixels, batch, channels = x.shape
    weights = values.permute(1, 2, 0)  # (h, C, D)
    projected = torch.matmul(x.reshape(1, pixels * batch, channels), weights)  # (h, N B, D)
    return projected.view(len(weights) * pixels, -1)


def _at_once(x: Tensor, values: Tensor) -> Tensor:
    """The same by one product (N B x C) (C x h D), whose result is then laid out anew."""
    pixels, batch, _ = x.shape
    heads = values.shape[1]
    projected = F.linear(x, values.transpose(0, 1).flatten(0, 1))  # (N, B, h D)
    projected = projected.view(pixels, batch, heads, -1).permute(2, 0, 1, 3)
    return projected.reshape(heads * pixels, -1)


class Step:
    """One way to take a training step, with static input buffers."""

    def __init__(self, name: str, config: dict, batch: int, device: torch.device, forward: Forward):
        self.name, self.device = name, device
        torch.manual_seed(0)
        model = replace(PRESETS["quadratic"].model, config)
        self.network = build_model(model).to(device).train()
        self.forward = forward
        self.optimizers = build_optimizers(self.network, TrainConfig())
        size = (batch, model.image_channels, *model.image_size)
        self.images = torch.randn(size, device=device).to(memory_format=torch.channels_last)
        self.labels = torch.randint(model.classes, (batch,), device=device)

    def take(self) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16):
            logits = self.forward(self.network, self.images)
        loss = F.cross_entropy(logits.float(), self.labels)
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        loss.backward()
        for optimizer in self.optimizers:
            optimizer.step()
        return loss.detach()


def compiled(step: Step, mode: str | None) -> Callable[[], object]:
    """The step with its forward and backward pass compiled."""
    torch._dynamo.reset()
    step.forward = torch.compile(step.forward, dynamic=False, mode=mode)
    return step.take


def captured(step: Step) -> Callable[[], object]:
    """The whole step, optimizer and all, as one CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step.take()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step.take()
    return graph.replay


def ways(config: dict, batch: int, device: torch.device) -> dict[str, Callable[[], object]]:
    """Each way to take a step, ready; what cannot be done here is said, and left out."""
    forwards: dict[str, Forward] = {
        "as it is": as_it_is,
        "pixels first": pixels_first,
        "pixels first, one product": pixels_first_one_product,
    }
    found: dict[str, Callable[[], object]] = {}
    for name, forward in forwards.items():
        makers = {
            "eager": lambda step: step.take,
            "compiled": lambda step: compiled(step, None),
        }
        if device.type == "cuda":
            makers["compiled, reduce-overhead"] = lambda step: compiled(step, "reduce-overhead")
            makers["CUDA graph"] = captured
            makers["compiled, CUDA graph"] = lambda step: captured_after_compiling(step)
        for how, make in makers.items():
            title = f"{name}, {how}"
            started = time.monotonic()
            try:
                take = make(Step(title, config, batch, device, forward))
                for _ in range(3):
                    take()
            except Exception as error:  # a lead that fails is a result
                print(f"{title}: {type(error).__name__}: {str(error)[:200]}", flush=True)
                continue
            found[title] = take
            print(f"{title}: ready after {time.monotonic() - started:.0f} s", flush=True)
    return found


def captured_after_compiling(step: Step) -> Callable[[], object]:
    compiled(step, None)
    return captured(step)


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def race(
    steps: dict[str, Callable[[], object]], device: torch.device, rounds: int, each: int
) -> None:
    """Time all ways in turns and print the medians, the fastest first."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, take in steps.items():
            wait(device)
            started = time.perf_counter()
            for _ in range(each):
                take()
            wait(device)
            times[name].append(1000 * (time.perf_counter() - started) / each)
    for name in sorted(times, key=lambda name: statistics.median(times[name])):
        print(f"{statistics.median(times[name]):8.2f} ms  {name}")


def same_sums(config: dict, device: torch.device) -> None:
    """All forms of the forward pass give the same logits, in float32."""
    network = build_model(replace(PRESETS["quadratic"].model, config)).to(device).eval()
    images = torch.randn(4, 3, *network.config.image_size, device=device)
    with torch.no_grad():
        own = network(images)
        for form in (pixels_first, pixels_first_one_product):
            difference = (form(network, images) - own).abs().max().item()
            print(f"{form.__name__}: largest difference of logits {difference:.1e}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tiny", action="store_true", help="a tiny network, to see that all runs")
    tiny = parser.parse_args().tiny
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    config, batch = (TINY, 4) if tiny else ({}, 100)
    print(torch.__version__, torch.cuda.get_device_name() if device.type == "cuda" else "CPU")
    same_sums(config, device)

    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    step = Step("profiled", config, batch, device, as_it_is)
    step.take()
    with torch.profiler.profile(activities=activities) as profile:
        step.take()
        wait(device)
    order = "self_cuda_time_total" if device.type == "cuda" else "self_cpu_time_total"
    print(profile.key_averages().table(sort_by=order, row_limit=10, max_name_column_width=60))
    race(ways(config, batch, device), device, rounds=2 if tiny else 5, each=1 if tiny else 10)


if __name__ == "__main__":
    main()
