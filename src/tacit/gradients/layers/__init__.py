"""The layers that taps know, one file a kind."""
