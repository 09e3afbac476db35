//! Processes of a job exchange tagged messages from user space.
