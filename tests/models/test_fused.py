"""The fused block against the plain modules: values, gradients and running statistics."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from anyshot.models.backbones import Conv4, convolve_block, is_fusable


def twins(**options):
    """A plain and a fused Conv-4 with the same weights in float64, some of the batch norms' weights negative."""
    torch.manual_seed(0)
    networks = [Conv4(width=8, fused=fused, **options).double() for fused in (False, True)]
    for norm in networks[0].norms:
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    networks[1].load_state_dict(networks[0].state_dict())
    return networks


@pytest.mark.parametrize("side", [16, 21, 42])
@pytest.mark.parametrize("channels", [1, 3])
def test_training_is_that_of_the_plain_modules(side, channels):
    plain, fused = twins(channels=channels)
    images = torch.randn(19, channels, side, side, dtype=torch.float64)  # 19: the last chunk of a batch is smaller
    starts = [images.clone().requires_grad_() for _ in range(2)]
    outputs = [network(start) for network, start in zip((plain, fused), starts, strict=True)]
    torch.testing.assert_close(*outputs)
    weights = torch.randn_like(outputs[0])
    for output in outputs:
        (output * weights).sum().backward()
    torch.testing.assert_close(starts[0].grad, starts[1].grad, rtol=1e-9, atol=1e-9)
    for (name, one), other in zip(plain.named_parameters(), fused.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-9, atol=1e-9, msg=name)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(value, fused.state_dict()[name], msg=name)


def test_a_second_backward_pass_is_refused_since_the_first_has_used_the_memory():
    _, fused = twins()
    loss = fused(torch.randn(2, 3, 16, 16, dtype=torch.float64)).sum()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="inplace"):
        loss.backward()


def test_among_equal_values_the_gradient_goes_to_the_same_one():
    conv, norm = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
    x = torch.randint(0, 2, (6, 1, 8, 8)).float()
    grads = []
    for block in (lambda x: F.relu(F.max_pool2d(norm(conv(x)), 2)), lambda x: convolve_block(x, conv, norm)):
        start = x.clone().requires_grad_()
        block(start.contiguous(memory_format=torch.channels_last)).square().sum().backward()
        grads.append(start.grad)
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-5)


def test_only_training_on_a_cpu_in_full_precision_is_fused():
    x, norm = torch.zeros(1, 3, 4, 4), nn.BatchNorm2d(3)
    assert is_fusable(x, norm)
    with torch.autocast("cpu", torch.bfloat16):
        assert not is_fusable(x, norm)
    assert not is_fusable(x, norm.eval())
    assert not is_fusable(x, nn.Identity())
    assert not is_fusable(x.to("meta"), nn.BatchNorm2d(3))
