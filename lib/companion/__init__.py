"""What makes this repository a companion: the batch run, claims, figures and the explorer, on
top of `attnconv`.
"""
