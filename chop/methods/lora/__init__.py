"""LoRA: low-rank adapters beside linear layers."""
