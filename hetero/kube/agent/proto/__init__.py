"""The kubelet's gRPC interfaces; the stubs beside this file are generated (`make stubs`)."""
