//! One-sided operations in progress: numbers that are never used twice, and the requests that they belong to.

use std::collections::VecDeque;

use doorbell_fabric::message::OpId;

use crate::request::RequestId;

/// The operations, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Operations {
    first: u64,
    owners: VecDeque<Option<RequestId>>,
}

impl Operations {
    /// A new number for an operation of `owner`.
    pub(crate) fn start(&mut self, owner: RequestId) -> OpId {
        self.owners.push_back(Some(owner));
        OpId(self.first + self.owners.len() as u64 - 1)
    }

    /// The operation has ended, or was refused: whose it was.
    pub(crate) fn end(&mut self, op: OpId) -> Option<RequestId> {
        let at = usize::try_from(op.0.checked_sub(self.first)?).ok()?;
        let owner = self.owners.get_mut(at)?.take();
        while let Some(None) = self.owners.front() {
            self.owners.pop_front();
            self.first += 1;
        }
        owner
    }

    /// Operations that have not ended.
    pub(crate) fn open(&self) -> usize {
        self.owners.iter().flatten().count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_ends_once_and_is_never_used_again() {
        let mut operations = Operations::default();
        let owner = |n| RequestId::from_bits(n);
        let (a, b, c) = (
            operations.start(owner(1)),
            operations.start(owner(2)),
            operations.start(owner(3)),
        );
        assert_eq!(operations.end(b), Some(owner(2)));
        assert_eq!(operations.end(b), None);
        assert_eq!(operations.end(a), Some(owner(1)));
        assert_eq!(operations.end(a), None);
        assert_eq!(operations.end(c), Some(owner(3)));
        assert!(operations.owners.is_empty());
        let d = operations.start(owner(4));
        assert!(![a, b, c].contains(&d));
        assert_eq!(operations.end(OpId(u64::MAX)), None);
        assert_eq!(operations.end(d), Some(owner(4)));
    }
}
