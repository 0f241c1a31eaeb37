"""The kubelet's gRPC interfaces; the stubs beside this file are generated (`make stubs`).

Imports gRPC and protobuf, nothing of ours. Start with the `.proto` files.
"""
