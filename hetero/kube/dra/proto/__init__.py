"""The kubelet's gRPC interfaces for DRA drivers; the stubs beside this file are generated.

Imports gRPC and protobuf, nothing of ours. `make stubs` generates; start with the `.proto` files.
"""
