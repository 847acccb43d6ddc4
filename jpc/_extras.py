"""What to write where something of an extra is missing. JPC is on no package index, and the name
`jpc` there is that of another distribution.
"""

TRAIN = "pip install -e '.[train]' in the folder of JPC"
