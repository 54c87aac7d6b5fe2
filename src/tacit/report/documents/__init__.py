"""Every JSON document that tacit writes or reads, as frozen models: a module for each kind."""
