//! The commands that the firmware of the model knows (3.4, 8.4).

/// Directions and flags of a command word (3.3).
const NOWAIT: u32 = 1 << 24;
const WRITE: u32 = 1 << 30;
const READ: u32 = 2 << 30;

/// A command word: what the firmware looks at is its number and its direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Word(pub(crate) u32);

impl Word {
    pub(crate) fn number(self) -> u16 {
        (self.0 & 0x3fff) as u16
    }

    fn direction(self) -> u32 {
        self.0 & (WRITE | READ)
    }

    pub(crate) fn is_nowait(self) -> bool {
        self.0 & NOWAIT != 0
    }
}

macro_rules! commands {
    ($($name:ident = $number:literal $direction:ident,)*) => {
        /// A command that is known.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Command { $($name,)* }

        const TABLE: &[(u16, u32, Command)] = &[$(($number, direction::$direction, Command::$name),)*];
    };
}

mod direction {
    use super::{READ, WRITE};
    pub(super) const NONE: u32 = 0;
    pub(super) const W: u32 = WRITE;
    pub(super) const R: u32 = READ;
    pub(super) const RW: u32 = WRITE | READ;
}

commands! {
    FwInfo = 1 RW,
    FwInfoOld = 1 W,
    DevSpec = 2 RW,
    StatsClear = 3 NONE,
    StatsDump = 4 W,
    PacketFilter = 7 W,
    HangNotify = 8 NONE,
    MacAddr = 9 R,
    AddrAdd = 12 W,
    AddrDel = 13 W,
    VlanAdd = 14 W,
    VlanDel = 15 W,
    NicCfg = 16 W,
    RssKey = 17 W,
    RssCpu = 18 W,
    SoftReset = 19 NONE,
    SoftResetStatus = 20 R,
    Notify = 21 RW,
    Open = 23 W,
    OpenStatus = 24 R,
    Close = 25 NONE,
    InitV1 = 26 R,
    Enable = 28 W,
    Disable = 29 NONE,
    StatsDumpAll = 30 W,
    InitStatus = 31 R,
    Deinit = 34 NONE,
    Init = 35 W,
    Capability = 36 RW,
    Iar = 38 W,
    HangReset = 39 NONE,
    HangResetStatus = 40 R,
    VlanRewrite = 41 RW,
    ProxyByBdf = 42 RW,
    ProxyByIndex = 43 RW,
    DefaultVlan = 46 RW,
    Status = 49 RW,
    IntrCoalConvert = 50 R,
    SetMacAddr = 55 W,
    InitDevcmd2 = 57 W,
    AddFilter = 58 RW,
    DelFilter = 59 W,
    QpEnable = 60 W,
    QpDisable = 61 W,
    QpStatsDump = 62 W,
    QpStatsClear = 63 W,
}

/// The command that a word stands for, unless this firmware does not have it.
pub(crate) fn find(word: Word, without: &[u16]) -> Option<Command> {
    let is = |row: &&(u16, u32, Command)| row.0 == word.number() && row.1 == word.direction();
    TABLE
        .iter()
        .find(is)
        .map(|row| row.2)
        .filter(|_| !without.contains(&word.number()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_words_of_the_reference_are_found() {
        for (word, command) in [
            (0xC001_C001, Command::FwInfo),
            (0x4001_C001, Command::FwInfoOld),
            (0xC001_C002, Command::DevSpec),
            (0x0101_C003, Command::StatsClear),
            (0x4001_C004, Command::StatsDump),
            (0x4100_4007, Command::PacketFilter),
            (0x4101_C007, Command::PacketFilter),
            (0x8000_C009, Command::MacAddr),
            (0x4101_C010, Command::NicCfg),
            (0x4001_C010, Command::NicCfg),
            (0x0101_C013, Command::SoftReset),
            (0x8001_C014, Command::SoftResetStatus),
            (0xC001_C015, Command::Notify),
            (0x4101_C017, Command::Open),
            (0x8001_C018, Command::OpenStatus),
            (0x8101_C01A, Command::InitV1),
            (0x4101_C01C, Command::Enable),
            (0x4001_C01C, Command::Enable),
            (0x8001_C01F, Command::InitStatus),
            (0x4101_C023, Command::Init),
            (0xC001_C024, Command::Capability),
            (0xC001_C02B, Command::ProxyByIndex),
            (0x8001_C032, Command::IntrCoalConvert),
            (0x4001_C039, Command::InitDevcmd2),
            (0xC000_403A, Command::AddFilter),
            (0x4000_403B, Command::DelFilter),
            (0x4000_403C, Command::QpEnable),
            (0x4000_403D, Command::QpDisable),
        ] {
            assert_eq!(find(Word(word), &[]), Some(command), "{word:#x}");
        }
        assert_eq!(find(Word(0xC000_404D), &[]), None, "ADD_ADV_FILTER");
        assert_eq!(find(Word(0x4001_C002), &[]), None, "DEV_SPEC the other way");
        assert_eq!(find(Word(0xC000_403A), &[58]), None);
        assert!(Word(0x0101_C013).is_nowait() && !Word(0xC001_C024).is_nowait());
    }
}
