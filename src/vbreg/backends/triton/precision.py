"""Products of float32 matrices in torch that may round their factors to ten bits."""

from __future__ import annotations

from threading import Lock

import torch


class RoundedProducts:
    """Within, torch rounds factors of products as TF32 does, which tensor cores compute quickly.

    Torch's switch is the whole process's: the first thread to come in turns it, the last to leave
    turns it back.
    """

    def __init__(self) -> None:
        self.lock, self.inside, self.before = Lock(), 0, ""

    def __enter__(self) -> None:
        with self.lock:
            if self.inside == 0:
                self.before = self._set("high", "tf32")
            self.inside += 1

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.inside -= 1
            if self.inside == 0:
                self._set(self.before, self.before)

    @staticmethod
    def _set(older: str, newer: str) -> str:
        """Turn the older of torch's two switches, unless the newer has been touched.

        Return how it stood before.
        """
        try:
            before = torch.get_float32_matmul_precision()
        except RuntimeError:
            matmul = torch.backends.cuda.matmul
            before, matmul.fp32_precision = matmul.fp32_precision, newer
            return before
        torch.set_float32_matmul_precision(older)
        return before


rounded_products = RoundedProducts()
