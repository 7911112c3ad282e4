"""Templates, one TOML file a prompt kind. rendering.py reads them; a task may replace any of them."""
