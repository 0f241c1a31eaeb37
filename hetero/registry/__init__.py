"""What asks vendors: finds them, starts a process for each, and keeps one's fault from the others.

Imports `hetero.model` and `hetero.plugin`. Start with `registry`, whose `Registry` the node asks;
`supervisor` keeps a vendor's process (`process`), in which `respondent` asks the vendor's hooks.
`message` is what goes between.
"""
