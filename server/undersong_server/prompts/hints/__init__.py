"""Public hints by which no two prompts of a batch are alike, one TOML file per language."""
