"""Gradients through inference code.

Libraries forecast under `no_grad`, detach, write in place and divide by a standard deviation that may be zero. A
`GradientPath` around forward and backward makes such code differentiable without changing it, and `rewrites` lists what
it handled. Adapters decide which call to make; the admission checks measure whether its gradient is right.

- Disabling gradients has no effect; `detach`, `detach_` and reading `data` keep the graph.
- In-place operations stay in place: autograd handles every alias (`y = x; y /= s; return x + y`), and `x /= s` arrives
  as the same `div_` as the statement `x.div_(s)`, so a rewrite cannot know which of them rebinds a name. Tensors that
  backward needs are copied just before they are overwritten. Torch's `allow_mutation_on_saved_tensors` is not enough:
  it identifies a saved tensor by data pointer, Python id and version, so a write through a view that starts elsewhere
  (`y[2:] = 0`) or a recycled id gives wrong gradients without an error. Here the storage is the key, and the version is
  checked before every use.
- An elementwise function gets a zero gradient where it has none: at NaN operands, and at the zero of a root. Otherwise
  0 · NaN spreads over whole windows although a mask (`nanmean`, `where`) removes the element. Forward values do not
  change, and a NaN that no mask removes stays in the forecast. Only a window of NaN alone keeps NaN gradients: its mean
  is 0 / 0.

What remains impossible raises: writing in place to a leaf (`differentiable_input` avoids it) or to a view from
`unbind`, `split` or `chunk`; assigning `data`; `numpy()` or `out=` on the path. Under `inference_mode` there is no
gradient: call the function's `__wrapped__`. Values extracted by `item`, `tolist` or `torch.tensor` become constants
without an error; only finite differences detect those.
"""

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import cache, reduce
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakSet

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

_ROOTS = frozenset({"sqrt", "rsqrt"})
# The derivative of these multiplies the incoming gradient by a factor that is NaN at a NaN operand.
_ELEMENTWISE = _ROOTS | {
    "div", "divide", "mul", "multiply", "pow", "reciprocal", "square", "true_divide", "__rdiv__", "__rpow__", "abs",
    "arcsinh", "asinh", "cos", "cosh", "exp", "expm1", "log", "log1p", "sigmoid", "sin", "sinh", "tanh",
}  # fmt: skip
_NOT_WRITES = frozenset({"requires_grad_", "share_memory_"})
_SKIPPED_FRAMES = (os.path.dirname(torch.__file__) + os.sep, __file__)


class Rewrite(NamedTuple):
    """One kind of operation handled at one place of the library, and how often."""

    operation: str
    place: str
    count: int  # type: ignore[assignment]  # hides tuple.count


class DifferentiableInput(NamedTuple):
    """`working` goes into the model, which may write into it; the gradient is taken at `leaf`."""

    leaf: Tensor
    working: Tensor


class GradientPath:
    """Context in which library inference code is differentiable; backward belongs inside it too.

    Inside another active path of the same thread it joins that one. If gradients are disabled on entry it changes
    nothing.
    """

    def __init__(self) -> None:
        self._calls = _LibraryCalls()

    def __enter__(self) -> "GradientPath":
        if _active.path is None:
            writes = _WriteGuard()
            with ExitStack() as opened:
                opened.enter_context(torch.autograd.graph.saved_tensors_hooks(writes.pack, _unpack))
                opened.enter_context(writes)
                opened.enter_context(self._calls)
                _active.opened = opened.pop_all()
            _active.path = self
        _active.grad_on_entry.append(torch.is_grad_enabled())
        return _active.path

    def __exit__(self, *raised: object) -> None:
        _active.grad_on_entry.pop()
        if not _active.grad_on_entry:
            _active.path = None
            _active.opened.close()

    @property
    def rewrites(self) -> tuple[Rewrite, ...]:
        """Everything handled so far, sorted by operation and place."""
        return tuple(Rewrite(*key, count) for key, count in sorted(self._calls.counts.items()))


class _Active(threading.local):
    """Active path of this thread: torch's modes and hooks are per thread as well."""

    def __init__(self) -> None:
        self.path: GradientPath | None = None
        self.opened = ExitStack()
        self.grad_on_entry: list[bool] = []


_active = _Active()


class _LibraryCalls(TorchFunctionMode):
    """Intercepts every torch call from Python; all but the few in `_HANDLERS` cost one lookup."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[tuple[str, str]] = Counter()

    def record(self, operation: str) -> None:
        self.counts[operation, _caller()] += 1

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        handler = _HANDLERS.get(getattr(func, "__name__", ""))
        if handler is None or not torch.is_grad_enabled():
            return func(*args, **(kwargs or {}))
        return handler(self, func, args, kwargs or {})

    def grad_switch(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if args[0] or not _active.grad_on_entry[-1]:
            return func(*args, **kwargs)
        return self.record("no_grad")

    def detach(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        x = args[0] if args else kwargs["input"]
        if not _on_path(x):
            return func(*args, **kwargs)
        self.record(func.__name__)
        # A new alias, not the tensor itself: the library may reshape the detached tensor.
        return x if func.__name__ == "detach_" else x.view_as(x)

    def read_attribute(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if func.__self__ is not torch.Tensor.data or not _on_path(args[0]):
            return func(*args, **kwargs)
        self.record("data")
        return args[0].view_as(args[0])

    def write_attribute(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if func.__self__ is torch.Tensor.data and (_on_path(args[0]) or _on_path(args[1])):
            raise RuntimeError(f"{_caller()} assigns `data` of a tensor on the gradient path, which cuts the gradient.")
        return func(*args, **kwargs)

    def in_place(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        result = func(*args, **kwargs)
        if args and _on_path(args[0]):
            name = "x[...] = v" if func.__name__ == "__setitem__" else func.__name__
            self.record(f"{name} (kept in place)")
        return result

    def elementwise(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        masks = _undefined(func.__name__, args, kwargs)
        if not masks:
            return func(*args, **kwargs)
        self.record(f"{func.__name__} (zero gradient where undefined)")
        with torch.no_grad():
            value = func(*args, **kwargs)
        # The operand is masked as well as the result: masking the result alone leaves 0 · NaN in backward.
        by_place = [x.masked_fill(masks[i], 1) if i in masks else x for i, x in enumerate(args)]
        by_name = {k: x.masked_fill(masks[k], 1) if k in masks else x for k, x in kwargs.items()}
        return torch.where(reduce(torch.logical_or, masks.values()), value, func(*by_place, **by_name))

    def elementwise_in_place(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        name = func.__name__.removesuffix("_")
        if not _undefined(name, args, kwargs):
            return self.in_place(func, args, kwargs)
        value = self.elementwise(getattr(Tensor, name), args, kwargs)
        self.record(f"{func.__name__} (kept in place)")
        return args[0].copy_(value)


def _on_path(x: object) -> bool:
    # The path starts at the input; operations of a library on its own parameters are not handled.
    return isinstance(x, Tensor) and x.requires_grad and not isinstance(x, torch.nn.Parameter)


def _undefined(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[int | str, Tensor]:
    """Masks of the operands' elements at which the function has no derivative, by position or keyword."""
    operands: dict[int | str, Any] = dict(enumerate(args)) | dict(kwargs)
    if kwargs.get("out") is not None or not any(_on_path(x) for x in operands.values()):
        return {}
    exponent = operands.get("exponent", operands.get(1)) if name == "pow" else None
    root = name in _ROOTS or (isinstance(exponent, int | float) and exponent < 1 and exponent != 0)
    masks: dict[int | str, Tensor] = {}
    # Nothing is written here, so the write guard is skipped.
    with torch.no_grad(), torch._C._DisableTorchDispatch():
        for key, x in operands.items():
            if not isinstance(x, Tensor) or not x.is_floating_point():
                continue
            if root:
                masks[key] = (x == 0) | x.isnan()
            elif x.sum().isnan():  # one pass without extra memory for the usual case without NaN
                masks[key] = x.isnan()
        return {key: mask for key, mask in masks.items() if mask.any()}


_HANDLERS: dict[str, Callable[[_LibraryCalls, Any, Sequence[Any], Mapping[str, Any]], Any]] = {
    name: _LibraryCalls.in_place
    for name in {*dir(Tensor), *dir(torch), *dir(torch.nn.functional)} - _NOT_WRITES
    if name.endswith("_") and not name.startswith("_")
}
_HANDLERS |= dict.fromkeys(_ELEMENTWISE, _LibraryCalls.elementwise)
_HANDLERS |= {f"{name}_": _LibraryCalls.elementwise_in_place for name in _ELEMENTWISE if f"{name}_" in _HANDLERS}
_HANDLERS |= {
    "_set_grad_enabled": _LibraryCalls.grad_switch,
    "detach": _LibraryCalls.detach,
    "detach_": _LibraryCalls.detach,
    "__get__": _LibraryCalls.read_attribute,
    "__set__": _LibraryCalls.write_attribute,
    "__setitem__": _LibraryCalls.in_place,
}


class _Saved:
    """A tensor that backward needs, in the state in which it was saved."""

    __slots__ = ("__weakref__", "tensor", "version")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.version = tensor._version


class _WriteGuard(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Copies tensors that backward needs just before they are overwritten, through any view."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # An entry keeps its tensor and storage alive, so no key is recycled.
        self._by_storage: dict[int, WeakSet[_Saved]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True wraps every operation for torch's compiler, at twice the cost

    def pack(self, tensor: Tensor) -> _Saved:
        saved = _Saved(tensor)
        self._by_storage.setdefault(tensor.untyped_storage()._cdata, WeakSet()).add(saved)
        return saved

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        for i, name in _written(func):
            target = args[i] if i < len(args) else kwargs.get(name)
            for tensor in target if isinstance(target, list | tuple) else (target,):
                if isinstance(tensor, Tensor):
                    self._copy_saved(tensor)
        return func(*args, **kwargs)

    def _copy_saved(self, target: Tensor) -> None:
        copies: dict[int, Tensor] = {}
        for saved in self._by_storage.pop(target.untyped_storage()._cdata, ()):
            if id(saved.tensor) not in copies:
                copies[id(saved.tensor)] = saved.tensor.clone()
            saved.tensor = copies[id(saved.tensor)]
            saved.version = saved.tensor._version


backward_alone: Callable[[], AbstractContextManager[None]] = torch._C._DisableTorchDispatch
"""Around a backward pass inside a path: disables the write guard, which makes the pass up to three times faster.

Backward by itself overwrites nothing that it needs. If a library's own backward function does, the next use of the
overwritten tensor raises.
"""


def _unpack(saved: _Saved) -> Tensor:
    if saved.tensor._version != saved.version:
        raise RuntimeError(
            "A tensor that backward needs was overwritten outside the GradientPath of its forward pass; "
            "keep backward, and every write, inside it."
        )
    return saved.tensor


@cache
def _written(func: Any) -> tuple[tuple[int, str], ...]:
    """Position and name of the arguments that an operator overwrites."""
    return tuple(
        (i, argument.name)
        for i, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def _caller() -> str:
    """First line outside torch and this module, as `package/module.py:line`."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_SKIPPED_FRAMES):
        frame = frame.f_back
    parts = Path(frame.f_code.co_filename).parts
    start = parts.index("site-packages") + 1 if "site-packages" in parts else -2
    return f"{'/'.join(parts[start:])}:{frame.f_lineno}"


def differentiable_input(x: Tensor) -> DifferentiableInput:
    """A copy of the windows at which a gradient is taken, and a second one that a model may write into."""
    with torch._C.DisableTorchFunction(), torch.enable_grad():
        leaf = x.detach().clone().requires_grad_()
        return DifferentiableInput(leaf, leaf.clone())


def relative_difference(a: Tensor, b: Tensor) -> float:
    """`max|a − b| / max|b|`, the parity value; infinite if NaNs do not match or only `b` is zero."""
    if a.shape != b.shape:
        raise ValueError(f"Cannot compare shapes {tuple(a.shape)} and {tuple(b.shape)}.")
    with torch._C.DisableTorchFunction(), torch.no_grad():
        a, b = a.double(), b.double()
        differs = (a != b) & ~(a.isnan() & b.isnan())
        if not differs.any():
            return 0.0
        difference = (a - b)[differs].abs().max()
        finite = b[b.isfinite()]
        scale = finite.abs().max() if len(finite) else difference.new_zeros(())
        ratio = float(difference / scale)
    return ratio if ratio == ratio else float("inf")
