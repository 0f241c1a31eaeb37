"""The documents: what they show works, and what they say is plain."""
