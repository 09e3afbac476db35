//! Completion queues.
//!
//! | file | what it holds |
//! |---|---|
//! | `object` | the object: opened, read, waited on, closed |
//! | `queue` | its state: what has ended, and the places of what will |
//! | `ring`, `entry` | unread entries, in the client's format |
//! | `failure` | failed operations, and their texts |
//! | `outlet` | the memory of a caller that reads |

mod entry;
mod failure;
mod object;
mod outlet;
mod queue;
mod ring;

pub(crate) use self::entry::{Entry, Format};
pub(crate) use self::failure::Failure;
pub(crate) use self::object::{CompletionQueue, open};
pub(crate) use self::outlet::{Outlet, QueueIndex};
pub(crate) use self::queue::Queue;

use libfabric_sys::FI_EMFILE;

use crate::bell::Bell;
use crate::errno::{Errno, Result};

/// The completion queues of a domain, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct Queues(Vec<Option<Queue>>);

impl Queues {
    /// Adds a queue.
    ///
    /// # Errors
    /// `FI_EMFILE` for more than can be numbered.
    pub(crate) fn add(&mut self, format: Format, size: usize, bell: Bell) -> Result<QueueIndex> {
        let free = self.0.iter().position(Option::is_none).unwrap_or(self.0.len());
        let index = u16::try_from(free).ok().map(QueueIndex);
        let index = index
            .filter(|index| *index != QueueIndex::NONE)
            .ok_or(Errno(FI_EMFILE))?;
        let queue = Some(Queue::new(index, format, size, bell));
        match self.0.get_mut(free) {
            Some(place) => *place = queue,
            None => self.0.push(queue),
        }
        Ok(index)
    }

    /// Removes a queue, that no endpoint is bound to.
    pub(crate) fn remove(&mut self, index: QueueIndex) {
        if let Some(place) = self.0.get_mut(usize::from(index.0)) {
            *place = None;
        }
    }

    /// A queue; `None` for a number that is not one's.
    #[inline(always)]
    pub(crate) fn get_mut(&mut self, index: QueueIndex) -> Option<&mut Queue> {
        self.0.get_mut(usize::from(index.0))?.as_mut()
    }

    /// Whether a queue has as many unread entries as it may.
    #[inline(always)]
    pub(crate) fn is_full(&self, index: QueueIndex) -> bool {
        matches!(self.0.get(usize::from(index.0)), Some(Some(queue)) if queue.is_full())
    }

    /// The bell of a queue.
    pub(crate) fn bell(&mut self, index: QueueIndex) -> Option<&mut Bell> {
        self.get_mut(index).map(|queue| &mut queue.bell)
    }

    /// Whether a wait on a queue is to end; true once for each signal.
    pub(crate) fn take_signal(&mut self, index: QueueIndex) -> bool {
        self.get_mut(index).is_some_and(Queue::take_signal)
    }

    /// Returns the bells of all queues.
    pub(crate) fn bells(&mut self) -> impl Iterator<Item = &mut Bell> {
        self.0.iter_mut().flatten().map(|queue| &mut queue.bell)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_closed_queues_are_used_again() {
        let mut queues = Queues::default();
        let add = |queues: &mut Queues| queues.add(Format::Context, 0, Bell::silent()).unwrap();
        let all = [(); 3].map(|()| add(&mut queues));
        assert_eq!(all, [0, 1, 2].map(QueueIndex));
        queues.remove(all[1]);
        assert!(queues.get_mut(all[1]).is_none() && queues.get_mut(QueueIndex::NONE).is_none());
        assert_eq!(add(&mut queues), all[1]);
        assert!(!queues.is_full(all[1]) && !queues.is_full(QueueIndex::NONE));
    }
}
