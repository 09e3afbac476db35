//! Messages between the processes of one host through sealed shared memory.
