from importlib.util import find_spec

# What is run where Flower is installed, by `test_flower.py`.
collect_ignore = [] if find_spec("flwr") else ["flower_parties.py", "under_flower.py"]
