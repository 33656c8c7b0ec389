"""The plugin side: hookspecs, discovery, options, choice and checks of backends."""
