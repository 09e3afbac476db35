//! The key of an arrival, and what an entry matches.

/// The key of one arrival: all of it is given.
///
/// The PML puts its communicator's context id into `table`, the sender's rank into `source` and the tag into
/// `bits`. A Portals interface puts the portal table index into `table`, the initiator into `source` (the
/// rank, or a node number and a process id in 16 bits each, so that either half can be left open with
/// [`Pattern::source_ignore`]) and the match bits into `bits`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MatchKey {
    /// Communicator context or portal table index; never a wildcard.
    pub table: u32,
    /// Rank of the sender.
    pub source: u32,
    /// Tag or match bits.
    pub bits: u64,
}

impl MatchKey {
    /// A key from its three parts.
    #[inline]
    #[must_use]
    pub const fn new(table: u32, source: u32, bits: u64) -> Self {
        Self { table, source, bits }
    }
}

/// What a posted entry, a probe or a search matches.
///
/// It matches a key when the tables are equal and all bits that are not ignored are equal:
/// `((key.bits ^ bits) & !ignore) == 0`, and the same for the source with `source_ignore`
/// (reference: portals, section 6, step 3).
///
/// MPI's "any tag" must not match the negative tags of collectives (reference: bfo, section 4); with the tag
/// in the low 32 bits that is `bits: 0, ignore: 0x7fff_ffff`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pattern {
    /// Communicator context or portal table index.
    pub table: u32,
    /// The source to match; bits under `source_ignore` do not count.
    pub source: u32,
    /// Source bits that may differ: 0 matches exactly this source, `u32::MAX` any.
    pub source_ignore: u32,
    /// Tag or match bits to match; bits under `ignore` do not count.
    pub bits: u64,
    /// Match bits that may differ: 0 matches exactly these bits.
    pub ignore: u64,
}

impl Pattern {
    /// Exactly this source and these bits: the hashed, cheapest kind.
    #[inline]
    #[must_use]
    pub const fn exact(table: u32, source: u32, bits: u64) -> Self {
        Self {
            table,
            source,
            source_ignore: 0,
            bits,
            ignore: 0,
        }
    }

    /// These bits from any source.
    #[inline]
    #[must_use]
    pub const fn any_source(table: u32, bits: u64) -> Self {
        Self {
            table,
            source: 0,
            source_ignore: u32::MAX,
            bits,
            ignore: 0,
        }
    }

    /// Leaves these match bits open.
    #[inline]
    #[must_use]
    pub const fn ignoring(self, ignore: u64) -> Self {
        Self { ignore, ..self }
    }

    /// Leaves these source bits open (Portals' "any node" or "any process of this node").
    #[inline]
    #[must_use]
    pub const fn ignoring_source(self, source_ignore: u32) -> Self {
        Self {
            source_ignore,
            ..self
        }
    }

    /// True when nothing is left open.
    #[inline]
    #[must_use]
    pub const fn is_exact(&self) -> bool {
        self.source_ignore == 0 && self.ignore == 0
    }

    /// True when the key fits the pattern.
    #[inline]
    #[must_use]
    pub const fn matches(&self, key: &MatchKey) -> bool {
        self.table == key.table
            && (key.source ^ self.source) & !self.source_ignore == 0
            && (key.bits ^ self.bits) & !self.ignore == 0
    }
}

impl From<MatchKey> for Pattern {
    #[inline]
    fn from(key: MatchKey) -> Self {
        Self::exact(key.table, key.source, key.bits)
    }
}
