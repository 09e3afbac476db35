//! Parameters: settings by their names in libfabric.
