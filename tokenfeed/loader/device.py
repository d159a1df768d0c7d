"""Bringing samples to where the model is."""

from __future__ import annotations

from typing import Any

import torch


class Placer:
    """Puts the tensors of a sample on a device.

    On a GPU the copy goes through pinned memory on a stream of its own, so that it runs beside what the GPU is still doing;
    what the caller launches afterwards waits for it. Nothing waits in this process.

    Args:
        device: where to; None and a CPU leave samples where they are.
        pin_memory: whether samples that stay are put into pinned memory.
    """

    def __init__(self, device: torch.device | str | None = None, pin_memory: bool = False) -> None:
        self._device = torch.device(device) if device is not None else None
        self._copies = self._device is not None and self._device.type == "cuda"
        self._stream = torch.cuda.Stream(self._device) if self._copies else None  # type: ignore[no-untyped-call]
        self.pins = pin_memory or self._copies

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        """The sample there; values that are no tensors as they are."""
        if self.pins:
            sample = {name: value.pin_memory() if _is_tensor(value) else value for name, value in sample.items()}
        if self._stream is None:
            return sample
        with torch.cuda.stream(self._stream):
            copied = {
                name: value.to(self._device, non_blocking=True) if _is_tensor(value) else value
                for name, value in sample.items()
            }
        current = torch.cuda.current_stream(self._device)
        current.wait_stream(self._stream)
        for value in copied.values():
            if _is_tensor(value):
                value.record_stream(current)  # the memory is the other stream's: this one may be slower
        return copied


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)
