"""The subcommands of `spirograd`, one module each."""
