//! Short lists of values for each peer, whose nodes come from one pool that all peers share.

use crate::pool::{Id, Pool};

/// A node of a list.
#[derive(Debug)]
pub(crate) struct Node<T> {
    value: Option<T>,
    next: Id<Node<T>>,
}

/// One list: what a peer holds of it, which is the index of its first node.
#[derive(Debug)]
pub(crate) struct List<T>(Id<Node<T>>);

impl<T> List<T> {
    /// An empty list.
    pub(crate) const fn new() -> Self {
        Self(Id::NONE)
    }

    /// Whether the list is empty.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0 == Id::NONE
    }

    /// The first node.
    #[inline]
    pub(crate) fn first(&self) -> Option<Id<Node<T>>> {
        (!self.is_empty()).then_some(self.0)
    }
}

/// The nodes of all lists of one kind. Each list belongs to one of these, and is passed to its methods.
#[derive(Debug)]
pub(crate) struct PooledLists<T>(Pool<Node<T>>);

impl<T> PooledLists<T> {
    /// Lists that have `most` values at most, all together.
    pub(crate) const fn new(most: usize) -> Self {
        Self(Pool::new(most))
    }

    /// Whether another value can be added to some list.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.0.available() > 0
    }

    /// Returns how many values all lists have together.
    pub(crate) fn active(&self) -> usize {
        self.0.active()
    }

    /// Adds a value at the end of a list; `None` when there are as many as there may be.
    pub(crate) fn push(&mut self, list: &mut List<T>, value: T) -> Option<Id<Node<T>>> {
        let id = self.0.take(|| Node {
            value: None,
            next: Id::NONE,
        })?;
        self.0[id] = Node {
            value: Some(value),
            next: Id::NONE,
        };
        match self.ids(list).last() {
            Some(last) => self.0[last].next = id,
            None => list.0 = id,
        }
        Some(id)
    }

    /// The first node of a list whose value `is` the one.
    pub(crate) fn find(&self, list: &List<T>, is: impl Fn(&T) -> bool) -> Option<Id<Node<T>>> {
        self.ids(list)
            .find(|id| self.0[*id].value.as_ref().is_some_and(&is))
    }

    /// Returns how many values a list has.
    pub(crate) fn len(&self, list: &List<T>) -> usize {
        self.ids(list).count()
    }

    /// The value of a node, while it is in a list.
    #[inline]
    pub(crate) fn get(&mut self, id: Id<Node<T>>) -> Option<&mut T> {
        self.0[id].value.as_mut()
    }

    /// Takes a value out of its list.
    pub(crate) fn remove(&mut self, list: &mut List<T>, id: Id<Node<T>>) -> Option<T> {
        let next = self.0[id].next;
        let before = self.ids(list).find(|before| self.0[*before].next == id);
        match before {
            Some(before) => self.0[before].next = next,
            None => list.0 = next,
        }
        self.0.give(id);
        self.0[id].value.take()
    }

    /// Takes all values out of a list.
    pub(crate) fn clear(&mut self, list: &mut List<T>) {
        while let Some(first) = list.first() {
            self.remove(list, first);
        }
    }

    /// Moves the first value of a list behind the `turns - 1` that follow it: those take turns, and the
    /// others wait until one of these is taken out.
    pub(crate) fn rotate(&mut self, list: &mut List<T>, turns: usize) {
        let first = list.0;
        let behind = self.ids(list).take(turns.max(1)).last();
        if let Some(behind) = behind.filter(|behind| *behind != first) {
            list.0 = self.0[first].next;
            self.0[first].next = self.0[behind].next;
            self.0[behind].next = first;
        }
    }

    /// The nodes of a list, in its order.
    fn ids(&self, list: &List<T>) -> impl Iterator<Item = Id<Node<T>>> + '_ {
        let next = |id: &Id<Node<T>>| Some(self.0[*id].next).filter(|next| *next != Id::NONE);
        std::iter::successors(list.first(), next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_share_their_nodes_and_keep_their_order() {
        let mut lists = PooledLists::new(4);
        let (mut one, mut two) = (List::new(), List::new());
        let [a, b, c] = [1, 2, 3].map(|n| lists.push(&mut one, n).unwrap());
        assert!(lists.push(&mut two, 9).is_some() && lists.push(&mut two, 10).is_none() && !lists.has_room());
        assert_eq!(
            (lists.len(&one), lists.len(&two), lists.len(&List::new())),
            (3, 1, 0)
        );
        lists.rotate(&mut one, 3);
        assert_eq!(one.first(), Some(b));
        assert_eq!(lists.find(&one, |n| *n == 1), Some(a));
        assert_eq!(lists.remove(&mut one, c), Some(3));
        assert_eq!(lists.find(&one, |n| *n == 3), None);
        assert_eq!(lists.push(&mut two, 10), Some(c));
        assert_eq!(
            (
                lists.remove(&mut one, b),
                lists.remove(&mut one, a),
                one.is_empty()
            ),
            (Some(2), Some(1), true)
        );
        assert_eq!(lists.get(a), None);
        lists.clear(&mut two);
        assert_eq!((two.is_empty(), lists.active()), (true, 0));
    }

    #[test]
    fn the_first_few_take_turns_and_the_others_wait() {
        let mut lists = PooledLists::new(5);
        let mut list = List::new();
        for n in 0..5 {
            lists.push(&mut list, n).unwrap();
        }
        let mut turns = |rounds: usize| -> Vec<i32> {
            let turn = |_| {
                let first = *lists.get(list.first().unwrap()).unwrap();
                lists.rotate(&mut list, 3);
                first
            };
            (0..rounds).map(turn).collect()
        };
        assert_eq!(turns(7), [0, 1, 2, 0, 1, 2, 0]);
        let first = list.first().unwrap();
        assert_eq!(lists.remove(&mut list, first), Some(1), "it was its turn");
        let order: Vec<i32> = (0..4)
            .map(|_| {
                let first = list.first().unwrap();
                lists.remove(&mut list, first).unwrap()
            })
            .collect();
        assert_eq!(order, [2, 0, 3, 4]);
    }
}
