"""One machine: what stands on its devices, who may come in, and how each is confined."""
