"""Requests: where they come from, how long they are, what a draft gets accepted."""
