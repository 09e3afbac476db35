//! The commands that the rail and its agent use: their words, and what they are called.
//!
//! Sources: DPDK `enic/base/vnic_devcmd.h`; libfabric and Linux's enic alike.

/// Bits of a command word.
const NOWAIT: u32 = 1 << 24;
const WRITE: u32 = 1 << 30;
const READ: u32 = 1 << 31;

/// A command: its word, and what it is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// Number in bits 0 to 13, kinds of functions in 14 to 23, flags in 24 to 29, direction in 30 and 31.
    pub word: u32,
    /// The name of the command in the drivers.
    pub name: &'static str,
}

macro_rules! commands {
    ($($(#[$doc:meta])* $name:ident = $word:literal;)*) => {
        $($(#[$doc])* pub const $name: Command = Command { word: $word, name: stringify!($name) };)*
        /// All of them.
        #[cfg(test)]
        pub const ALL: &[Command] = &[$($name),*];
    };
}
commands! {
    /// The firmware's words: IOVA of a buffer and its size; then bytes written.
    MCPU_FW_INFO = 0xc001_c001;
    /// Offset in the configuration block, size; then the value.
    DEV_SPEC = 0xc001_c002;
    /// IOVA of 512 bytes of counters, size.
    STATS_DUMP = 0x4001_c004;
    /// What is received without a filter: bits.
    PACKET_FILTER = 0x4100_4007;
    /// Reads the hardware address, its first octet lowest.
    MAC_ADDR = 0x8000_c009;
    /// A hardware address to receive.
    ADDR_ADD = 0x4100_c00c;
    /// Reports progress of SOFT_RESET: 0 when the reset is done.
    SOFT_RESET_STATUS = 0x8001_c014;
    /// Resets the whole function.
    SOFT_RESET = 0x0101_c013;
    /// IOVA of the notify area, size and interrupt; then the size that is kept.
    NOTIFY = 0xc001_c015;
    /// Opens the device; its argument is flags.
    OPEN = 0x4101_c017;
    /// Reports progress of OPEN: 0 when it is open.
    OPEN_STATUS = 0x8001_c018;
    /// Closes the device again.
    CLOSE = 0x0001_c019;
    /// Starts receiving, without a reply.
    ENABLE = 0x4101_c01c;
    /// Starts receiving, with a reply.
    ENABLE_WAIT = 0x4001_c01c;
    /// Stops receiving, without a reply.
    DISABLE = 0x0001_c01d;
    /// Reports progress of INIT: 0 when done, and an error's number.
    INIT_STATUS = 0x8001_c01f;
    /// Initializes the device; its argument is flags.
    INIT = 0x4101_c023;
    /// A command's word; then 0 where it is there.
    CAPABILITY = 0xc001_c024;
    /// A function's index, a command, its arguments; then its status and results.
    PROXY_BY_INDEX = 0xc001_c02b;
    /// IOVA of the ring of results, entries.
    INITIALIZE_DEVCMD2 = 0x4001_c039;
    /// IOVA of a filter, size; then its number.
    ADD_FILTER = 0xc000_403a;
    /// Removes the filter with this number.
    DEL_FILTER = 0x4000_403b;
    /// A queue pair, and 0 for both of its queues.
    QP_ENABLE = 0x4000_403c;
    /// A queue pair to turn off, and 0 for both of its queues.
    QP_DISABLE = 0x4000_403d;
}

impl Command {
    /// The number of the command, without its flags.
    #[must_use]
    pub fn number(self) -> u32 {
        self.word & 0x3fff
    }

    /// Whether the device is not waited for.
    #[must_use]
    pub fn is_nowait(self) -> bool {
        self.word & NOWAIT != 0
    }

    /// Whether it has arguments.
    #[must_use]
    pub fn writes(self) -> bool {
        self.word & WRITE != 0
    }

    /// Whether it has results.
    #[must_use]
    pub fn reads(self) -> bool {
        self.word & READ != 0
    }
}
