"""A pretended GPU: tensors that say they are on cuda:0 and compute on the CPU. (Used by the tests of devices.)

Inside `pretended_gpu()` whatever is made on or moved to "cuda" becomes a `Pretended` tensor. What a real GPU refuses
raises here too: operations on tensors of both devices, a CPU generator for numbers on the GPU, and `.numpy()`.
"""

from contextlib import contextmanager

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map

GPU = torch.device("cuda", 0)
# Operations that CUDA offers for indices on the CPU too.
WITH_CPU_INDICES = ("index.Tensor", "index_put_.default", "index_put.default", "_index_put_impl_.default")


class Pretended(torch.Tensor):
    """A tensor that reports cuda:0 and holds CPU data."""

    held: torch.Tensor
    device = property(lambda self: GPU)
    is_cuda = property(lambda self: True)

    @staticmethod
    def __new__(cls, held):
        how = {"strides": held.stride(), "dtype": held.dtype, "device": "cpu", "requires_grad": held.requires_grad}
        return torch.Tensor._make_wrapper_subclass(cls, held.size(), storage_offset=held.storage_offset(), **how)

    def __init__(self, held):
        self.held = held.detach()

    def __deepcopy__(self, memo):
        copy = Pretended(self.held.clone())
        return torch.nn.Parameter(copy, self.requires_grad) if isinstance(self, torch.nn.Parameter) else copy

    def __repr__(self, **_):
        return f"Pretended({self.held})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = str(func).removeprefix("aten.")
        tensors = [one for one in tree_flatten((args, kwargs))[0] if isinstance(one, torch.Tensor)]
        strangers = [one for one in tensors if not isinstance(one, Pretended) and one.dim() and one.numel()]
        if strangers and name not in WITH_CPU_INDICES:
            raise RuntimeError(f"{name}: tensors on cuda:0 and on the cpu, {[tuple(one.shape) for one in strangers]}")
        if isinstance(kwargs.get("generator"), torch.Generator):
            raise RuntimeError(f"{name}: a generator of the cpu for numbers on cuda:0")
        out = func(*tree_map(_held, args), **tree_map(_held, kwargs))
        if name.endswith(("_.default", "_.Tensor", "_.Scalar", "_.from", "_.value")) and isinstance(args[0], Pretended):
            return args[0]
        return tree_map(_wrapped, out)


def _held(value):
    return value.held if isinstance(value, Pretended) else value


def _wrapped(value):
    return Pretended(value) if isinstance(value, torch.Tensor) and not isinstance(value, Pretended) else value


class _Mode(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        first = args[0] if args else None
        if isinstance(first, Pretended) and name in ("numpy", "__array__"):
            raise TypeError("can't convert cuda:0 device type tensor to numpy")
        if isinstance(first, Pretended) and name == "tolist":
            return first.held.tolist()
        if isinstance(first, Pretended) and name == "new_tensor":  # makes a tensor on the device of its own
            return Pretended(first.held.new_tensor(*args[1:], **kwargs))
        if isinstance(first, Pretended) and name == "embedding_bag":  # makes tensors on its input's device itself
            assert all(isinstance(one, Pretended) for one in args if torch.is_tensor(one)), "tensors on the cpu"
            return Pretended(func(*tree_map(_held, args), **tree_map(_held, kwargs)))
        if name == "cpu" or (name == "to" and _is_cpu(args[1:], kwargs)):
            return _Leave.apply(first) if isinstance(first, Pretended) else func(*args, **kwargs)
        if name == "to" and _names_gpu((args[1:], kwargs)):
            here = ["cpu" if _names_gpu(one) else one for one in args[1:]]
            moved = func(first, *here, **{key: "cpu" if _names_gpu(one) else one for key, one in kwargs.items()})
            return moved if isinstance(moved, Pretended) else _Enter.apply(moved)
        if _names_gpu(kwargs.get("device")):
            out = func(*args, **(kwargs | {"device": "cpu"}))
            return out if isinstance(out, Pretended) else Pretended(out).requires_grad_(out.requires_grad)
        return func(*args, **kwargs)


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return Pretended(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.held


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.held.clone()

    @staticmethod
    def backward(ctx, gradient):
        return Pretended(gradient)


def _names_gpu(value):
    return any(
        (isinstance(one, str) and one.startswith("cuda")) or (isinstance(one, torch.device) and one.type == "cuda")
        for one in tree_flatten(value)[0]
    )


def _is_cpu(args, kwargs):
    return any(one in ("cpu", torch.device("cpu")) for one in (*args, kwargs.get("device")) if not torch.is_tensor(one))


@contextmanager
def pretended_gpu():
    """Pretend that there is a GPU, cuda:0."""
    before = torch.__future__.get_overwrite_module_params_on_conversion(), torch.inference_mode, torch.cuda.mem_get_info
    pin_memory = torch.Tensor.pin_memory
    torch.cuda.mem_get_info = lambda device: (1 << 34, 1 << 34)
    torch.Tensor.pin_memory = lambda self: self  # also in other threads, which the mode does not reach
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    torch.inference_mode = torch.no_grad  # tensors that hold others cannot be made in inference mode
    try:
        with _Mode():
            yield GPU
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(before[0])
        torch.inference_mode, torch.cuda.mem_get_info = before[1:]
        torch.Tensor.pin_memory = pin_memory
