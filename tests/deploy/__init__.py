"""Configuration of deployments, checked by the tools that read it."""
