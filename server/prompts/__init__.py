"""Templates, one TOML file a prompt kind. ``server.prompting`` reads them; a task may replace any of them."""
