"""The headings of `--help`."""

from __future__ import annotations

__all__ = ["HelpPanel"]


class HelpPanel:
    """The panels of `--help`, in the order shown."""

    MAIN = "Main arguments"
    GENERAL = "General options"
    TRAINER = "Trainer options"
    RUNTIME = "Runtime environment options"
    LANGUAGE = "Language model options"
    SEARCH = "Search options"
    HARDWARE = "Hardware options"
    EXPORT = "Export options"
    VERIFICATION = "Verification options"
    PROJECT = "Project options"
    INFORMATION = "Information"
    FILE = "Tables of the TOML file"
