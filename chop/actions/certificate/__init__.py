"""The certificate of a project: do all implementations of its network give the same codes?"""
