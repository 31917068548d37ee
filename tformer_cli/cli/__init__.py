"""The command line: one file a command, each parsing, calling one library function, printing."""
