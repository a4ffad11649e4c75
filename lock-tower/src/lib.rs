//! A tower layer that handles one request at a time per key.
