"""EngineConfig: frozen, validated, units in names."""
