"""Containers on one machine: a grant as a CDI device, and as what an OCI runtime is told."""
