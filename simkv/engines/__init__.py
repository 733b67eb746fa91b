"""Engines: one wing each, all behind the protocol of :mod:`simkv.engines.base`."""
