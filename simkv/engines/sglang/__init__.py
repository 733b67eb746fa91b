"""SGLang 0.5.23: sizing, routing of draft pools, memory and scheduling.

Sources are cited as ``FILE:line`` of the 0.5.23 wheel, with ``srt/`` left out.
"""
