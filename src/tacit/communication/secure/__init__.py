"""Between organisations: frames over mutual TLS, and what is signed and sent again on top of it."""
