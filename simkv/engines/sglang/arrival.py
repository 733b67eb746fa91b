"""What a request may ask for: the front end's refusal, and the scheduler's clipping (managers/scheduler.py)."""

from __future__ import annotations

from simkv.engines.base import Request
from simkv.engines.sglang.reserve import ceil_page, front_end_reserve
from simkv.engines.sglang.settings import Settings

__all__ = ["TOO_LONG", "Limits"]

TOO_LONG = "prompt longer than the server takes"


class Limits:
    """Longest prompts and answers of one server.

    Parameters
    ----------
    settings : Settings
    capacity : int
        Tokens of the pool that the scheduler counts on.
    """

    def __init__(self, settings: Settings, capacity: int) -> None:
        self._context = settings.context_len
        self._page = settings.page_size
        self._capacity = capacity
        self._reserved = front_end_reserve(settings.spec)

    @property
    def max_req_len(self) -> int:
        """Longest request, prompt and output (managers/tp_worker.py:550-582)."""
        return min(self._context - 1, self._capacity - 1)

    @property
    def longest_prompt(self) -> int:
        """Longest prompt the scheduler takes."""
        return self.max_req_len - 6

    def front_end_refusal(self, request: Request) -> tuple[str, str] | None:
        """Cause and detail of a 400 of the front end, before the scheduler sees the request; None: none.

        Notes
        -----
        Rule: managers/tokenizer_manager.py:1330-1376.
        """
        context, reserved = self._context, self._reserved
        tokens = request.input_tokens + reserved
        extra = f" + {reserved} draft slots" if reserved else ""
        if tokens >= context:
            longest = min(context - 1 - reserved, self.longest_prompt)
            return TOO_LONG, f"prompt {request.input_tokens:,} > {longest:,}, the longest the server takes"
        if tokens + request.max_new_tokens > context:
            return (
                "longer than the context",
                f"prompt {request.input_tokens:,}{extra} + max_new_tokens {request.max_new_tokens:,} > context length "
                f"{context:,}",
            )
        return None

    def max_new(self, request: Request) -> int:
        """Tokens a request may generate: what context and pool leave (mem_cache/allocator/base.py:88-105)."""
        tokens = request.input_tokens
        by_context = max(0, min(request.max_new_tokens, self.max_req_len - tokens - 1))
        return max(0, min(by_context, self._capacity - ceil_page(tokens, self._page) - self._page - 1))
