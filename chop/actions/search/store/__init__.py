"""Studies in Optuna's storages: a journal file, SQLite or PostgreSQL."""
