"""Replays workloads over cluster descriptions, to compare orders and to show what they do."""
