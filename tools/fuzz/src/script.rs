//! Input as a script: bytes that choose steps and their numbers.

/// What is left of the script. When it is over, every number is zero.
pub(crate) struct Script<'a> {
    rest: &'a [u8],
}

impl<'a> Script<'a> {
    pub(crate) fn new(input: &'a [u8]) -> Self {
        Self { rest: input }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.rest.is_empty()
    }

    /// The next `most` bytes, or as many as there are.
    pub(crate) fn take(&mut self, most: usize) -> &'a [u8] {
        let (now, later) = self.rest.split_at(most.min(self.rest.len()));
        self.rest = later;
        now
    }

    fn number(&mut self, bytes: usize) -> u64 {
        let number = self.take(bytes).iter().rev();
        number.fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.number(1) as u8
    }

    pub(crate) fn short(&mut self) -> u16 {
        self.number(2) as u16
    }

    pub(crate) fn long(&mut self) -> u64 {
        self.number(8)
    }

    /// A number below `bound`, which is at most 65,536.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        let number = if bound > 256 {
            usize::from(self.short())
        } else {
            usize::from(self.byte())
        };
        number % bound.max(1)
    }

    /// A number of any size, each size as likely as any other.
    pub(crate) fn any(&mut self) -> u64 {
        let bytes = self.below(9);
        self.number(bytes)
    }

    /// A number that an attacker would try: near what is expected, at the edges, or anything.
    pub(crate) fn near(&mut self, expected: u64) -> u64 {
        match self.byte() {
            0..64 => expected,
            choice @ 64..128 => expected.wrapping_add(u64::from(choice)).wrapping_sub(80),
            128..160 => u64::MAX - u64::from(self.byte() % 4),
            _ => self.any(),
        }
    }
}
