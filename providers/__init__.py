"""The adapters: one module a store, the snapshot, the conformance kit. All I/O with stores happens here."""
