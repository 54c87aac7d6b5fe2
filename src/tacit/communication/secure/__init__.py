"""Between organisations: frames over mutual TLS, and what is signed and sent again on top of it."""

from tacit.errors import optional

__all__ = ()

optional("zenoh")  # which its modules import as usual
