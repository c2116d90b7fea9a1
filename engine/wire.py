"""The contract's structs as msgpack frames: versioned and bounded."""
