"""Kubernetes: the only place that imports its libraries."""
