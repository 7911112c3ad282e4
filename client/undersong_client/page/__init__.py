"""The hospital's page: shows the party's state, requests and policy, and runs the actions of ``operations``."""
