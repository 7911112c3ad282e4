"""First on a process's path, this file hides what only extras bring: the process runs as a base install would."""

import sys

HIDDEN = frozenset(
    [
        "argon2",
        "authlib",
        "fastapi",
        "flwr",
        "grpc_health",
        "httpcore",
        "httpx",
        "joserfc",
        "multipart",
        "openpyxl",
        "python_calamine",
        "opacus",
        "pandas",
        "peft",
        "prometheus_client",
        "psycopg",
        "pyarrow",
        "ray",
        "sentence_transformers",
        "sklearn",
        "sqlalchemy",
        "striprtf",
        "tomli_w",
        "torch",
        "transformers",
        "uvicorn",
        "wordfreq",
    ]
)


class Hiding:
    """A finder that finds none of them, before any other is asked."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Hiding())
