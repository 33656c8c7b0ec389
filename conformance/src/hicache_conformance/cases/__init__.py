"""The cases, one module per subject. Importing a module registers its cases in the catalogue."""
