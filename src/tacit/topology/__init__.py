"""Who may talk and when (`graphs`, `own`), with which weight (`mixing`), and `checks`."""
