//! Tickets: a limit on how many of something this process has in progress (gasnet.md section 2).

/// A number of tickets of one kind. They are only counted; their holder knows what each is for.
#[derive(Debug)]
pub(crate) struct Tickets {
    free: u32,
    limit: u32,
}

impl Tickets {
    /// All of them free.
    pub(crate) const fn new(limit: u32) -> Self {
        Self { free: limit, limit }
    }

    /// Takes `count`, or none.
    #[inline]
    #[must_use]
    pub(crate) const fn take(&mut self, n: u32) -> bool {
        if self.free < n {
            return false;
        }
        self.free -= n;
        true
    }

    /// Returns one. More than there are cannot be returned, whatever the events report.
    #[inline]
    pub(crate) const fn give(&mut self) {
        if self.free < self.limit {
            self.free += 1;
        }
    }

    /// Returns how many could be taken.
    #[inline]
    pub(crate) const fn free(&self) -> u32 {
        self.free
    }

    /// Returns the number of tickets.
    pub(crate) const fn limit(&self) -> u32 {
        self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_or_none_and_never_more_than_there_are() {
        let mut tickets = Tickets::new(3);
        assert!(tickets.take(2));
        assert!(!tickets.take(2), "one is left");
        assert_eq!(tickets.free(), 1);
        tickets.give();
        tickets.give();
        tickets.give();
        assert_eq!(tickets.free(), tickets.limit());
    }
}
