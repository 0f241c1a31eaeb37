"""Objects of the Kubernetes API as types, and how they are read.

`kinds` has the fields that are read, and no others; `reading` makes objects of JSON.
"""
