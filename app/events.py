"""Everything a socket may say or hear: tagged structs."""
