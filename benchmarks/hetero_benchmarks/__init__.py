"""Measures what hetero promises, on a real card or a simulated one, and shows it beside its peers.

Each module named by an entry point of the group `hetero.bench` is one `hetero bench` subcommand.
"""
